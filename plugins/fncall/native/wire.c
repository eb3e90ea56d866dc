/* Messages with descriptors. */
#include "fn.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void close_all(const int *fds, int n) {
    for (int i = 0; i < n; i++)
        close(fds[i]);
}

static void take_fds(struct msghdr *message, struct received *into) {
    struct cmsghdr *part = CMSG_FIRSTHDR(message);
    into->nfds = 0;
    if (!part || part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
        return;
    into->nfds = (int)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(into->fds, CMSG_DATA(part), sizeof(int) * (size_t)into->nfds);
}

static int split(char *text, size_t size, struct received *into) {
    into->count = 0;
    for (char *end = text + size; text < end; text += strlen(text) + 1) {
        if (into->count == (int)(sizeof into->strings / sizeof *into->strings) - 2)
            return -1;
        into->strings[into->count++] = text;
    }
    return 1;
}

int receive(int socket, struct received *into) {
    static char body[ORDER_BYTES + 1];
    char room[CMSG_SPACE(sizeof(int) * FDS)];
    struct iovec parts[2] = {{&into->order, sizeof into->order}, {body, ORDER_BYTES}};
    struct msghdr message = {
        .msg_iov = parts, .msg_iovlen = 2, .msg_control = room, .msg_controllen = sizeof room};
    ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (got <= 0)
        return (int)got;
    take_fds(&message, into);
    if (got < (ssize_t)sizeof into->order || message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
        return -1;
    size_t rest = (size_t)got - sizeof into->order;
    body[rest] = 0;
    return split(body, rest, into);
}

int answer(int socket, const struct answer *what, const int *fds, int n) {
    char room[CMSG_SPACE(sizeof(int) * FDS)] = {0};
    struct iovec part = {(void *)what, sizeof *what};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (n) {
        message.msg_control = room;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)n);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)n);
        memcpy(CMSG_DATA(header), fds, sizeof(int) * (size_t)n);
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) < 0 ? -1 : 0;
}
