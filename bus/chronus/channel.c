/* The connection to the host: datagrams in, datagrams out, never waiting. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "chronus.h"

static int channel = CHANNEL_CLOSED;
static int blocked;
static int unsent; /* `held` waits for room */
static struct reply held;
static char buffer[REQUEST_MAX + 1];

int channel_descriptor(void) { return channel; }

int channel_blocked(void) { return blocked; }

static void hang_up(void) {
    if (channel != CHANNEL_CLOSED) close(channel);
    channel = CHANNEL_CLOSED;
    blocked = unsent = 0;
}

int channel_accept(void) {
    int newest, changed = 0;
    while ((newest = accept4(STDIN_FILENO, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        hang_up();
        channel = newest;
        changed = 1;
    }
    return changed;
}

static void take_descriptors(struct msghdr *message, struct request *request) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        request->nfds = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(request->fds, CMSG_DATA(c), (size_t)request->nfds * sizeof(int));
    }
}

void close_descriptors(struct request *request) {
    for (int i = 0; i < request->nfds; i++)
        if (request->fds[i] >= 0) close(request->fds[i]);
}

int channel_receive(struct request *request) {
    char control[CMSG_SPACE(sizeof request->fds)];
    struct iovec data = {buffer, REQUEST_MAX};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control};
    message.msg_controllen = CMSG_LEN(sizeof request->fds); /* CMSG_SPACE would let one more in */
    ssize_t length = recvmsg(channel, &message, MSG_CMSG_CLOEXEC);
    if (length < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOMEM)) return 0;
    *request = (struct request){.at = buffer + sizeof request->head, .end = buffer + length};
    if (length >= 0) take_descriptors(&message, request);
    if (length < (ssize_t)sizeof request->head) return close_descriptors(request), hang_up(), 0;
    memcpy(&request->head, buffer, sizeof request->head);
    request->head.error = message.msg_flags & MSG_CTRUNC ? EMFILE : message.msg_flags & MSG_TRUNC ? EMSGSIZE : 0;
    return 1;
}

int channel_send(const struct reply *reply) {
    char control[CMSG_SPACE(sizeof reply->fds)] = {0};
    struct iovec data[] = {{(void *)&reply->head, sizeof reply->head}, {(void *)reply->body, reply->length}};
    struct msghdr message = {.msg_iov = data, .msg_iovlen = 2};
    if (channel == CHANNEL_CLOSED) return 1;
    if (reply->nfds) {
        size_t size = (size_t)reply->nfds * sizeof(int);
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(size);
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(size)};
        memcpy(CMSG_DATA(c), reply->fds, size);
    }
    if (sendmsg(channel, &message, MSG_NOSIGNAL) >= 0) return 1;
    blocked = errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM;
    return !blocked;
}

void channel_answer(const struct reply *reply) {
    unsent = !channel_send(reply);
    if (unsent && reply != &held) memcpy(&held, reply, sizeof held);
}

int channel_flush(void) {
    blocked = 0;
    if (unsent) channel_answer(&held);
    return !blocked;
}
