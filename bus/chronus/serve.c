/* Requests: dispatched and answered. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "chronus.h"

static int ping(struct request *request, struct reply *reply) {
    (void)request, (void)reply;
    return 0;
}

static int list_execs(struct request *request, struct reply *reply) {
    struct exec *exec;
    uint32_t skip = take_u32(request);
    for (size_t i = 0; (exec = table_at(i)); i++) {
        if (!*exec->id || (skip && skip--)) continue;
        if (!put(reply, exec->id, strlen(exec->id) + 1)) {
            reply->head.flags |= FLAG_MORE;
            break;
        }
    }
    return 0;
}

/* ENOENT, also as EPROTO's stand-in: an exec without an id is never found. */
static struct exec *named(struct request *request) { return table_find(take_string(request)); }

static int attach(struct request *request, struct reply *reply) {
    struct exec *exec = named(request);
    if (!exec) return ENOENT;
    exec->watched = !exec->exited;
    if (exec->exited) {
        reply->head.flags |= FLAG_EXITED;
        put(reply, &exec->exit, sizeof exec->exit);
    }
    reply->head.flags |= exec->kind;
    if (exec->kept[KEPT_STDIN] >= 0) reply->head.flags |= FLAG_STDIN;
    for (int i = 0; i < KEPT; i++)
        if (exec->kept[i] >= 0) reply->fds[reply->nfds++] = exec->kept[i];
    return 0;
}

static int signal_leader(struct request *request, struct reply *reply) {
    uint32_t number = take_u32(request);
    struct exec *exec = named(request);
    (void)reply;
    if (!exec) return ENOENT;
    if (exec->exited) return 0;
    return kill(exec->pid, (int)number) < 0 ? errno : 0;
}

static int close_stdin(struct request *request, struct reply *reply) {
    struct exec *exec = named(request);
    (void)reply;
    if (!exec) return ENOENT;
    if (exec->kept[KEPT_STDIN] >= 0) close(exec->kept[KEPT_STDIN]);
    exec->kept[KEPT_STDIN] = -1;
    return 0;
}

/* Has no answer: what comes after it on this connection finds it done. */
static int release(struct request *request, struct reply *reply) {
    struct exec *exec = named(request);
    (void)reply;
    if (!exec) return DEFERRED;
    if (!exec->exited) kill(exec->pid, SIGKILL);
    table_remove(exec);
    return DEFERRED;
}

typedef int handler(struct request *, struct reply *);
static handler *const handlers[] = {
    [OP_PING] = ping,
    [OP_START] = start_exec,
    [OP_EXECS] = list_execs,
    [OP_ATTACH] = attach,
    [OP_SIGNAL] = signal_leader,
    [OP_CLOSE_STDIN] = close_stdin,
    [OP_RELEASE] = release,
    [OP_STAT] = file_stat,
    [OP_LIST] = file_list,
    [OP_READ] = file_read,
    [OP_WRITE] = file_write,
    [OP_MKDIR] = file_mkdir,
    [OP_SYMLINK] = file_symlink,
    [OP_REMOVE] = file_remove,
};

static int handle(struct request *request, struct reply *reply) {
    size_t op = request->head.op;
    if (request->head.error) return (int)request->head.error;
    if (request->head.version != VERSION) return EPROTONOSUPPORT;
    if (op >= sizeof handlers / sizeof *handlers || !handlers[op]) return ENOSYS;
    return handlers[op](request, reply);
}

void serve(struct request *request) {
    static struct reply reply;
    reply.head = (struct head){.version = VERSION, .op = request->head.op, .id = request->head.id};
    reply.length = 0;
    reply.nfds = 0;
    int error = handle(request, &reply);
    close_descriptors(request);
    if (error == DEFERRED) return;
    reply.head.error = (uint32_t)error;
    if (error) reply.length = 0, reply.nfds = 0;
    channel_answer(&reply);
}
