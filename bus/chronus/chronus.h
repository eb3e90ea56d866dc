/* The parts of chronus and what each offers to the others. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "protocol.h"

/* A request as it came: `at..end` is the part of the body not yet taken, `bad` that it was too short. */
struct request {
    struct head head;
    char *at, *end;
    int bad;
    int fds[DESCRIPTORS_MAX], nfds; /* closed after the request, except those set to -1 */
};

struct reply {
    struct head head;
    char body[REPLY_MAX - sizeof(struct head)];
    size_t length; /* of the body */
    int fds[REPLY_DESCRIPTORS], nfds;
};

/* message.c */
uint32_t take_u32(struct request *);
uint64_t take_u64(struct request *);
char *take_string(struct request *); /* "" when bad */
int put(struct reply *, const void *data, size_t length); /* 0 when it does not fit */

/* channel.c: the one connection to the host; the newest wins. */
enum { CHANNEL_CLOSED = -1 };
int channel_descriptor(void); /* CHANNEL_CLOSED when there is none */
int channel_blocked(void);    /* something waits for room in the socket: no request is read until then */
int channel_accept(void);     /* 1 when a new connection replaced the former */
int channel_receive(struct request *);     /* 1 when there was one */
int channel_send(const struct reply *);    /* 0 when blocked: send it again later */
void channel_answer(const struct reply *); /* sent at once, or kept until there is room */
int channel_flush(void);                   /* 1 when nothing is left to send */
void close_descriptors(struct request *);

/* table.c: every exec not yet released, and the workers. */
/* A terminal's master takes the place of standard input; the last three are a session's. */
enum { KEPT_STDOUT, KEPT_STDERR, KEPT_STDIN, KEPT_COMMANDS, KEPT_STATUS, KEPT_INPUT, KEPT };
struct exec {
    char id[EXEC_ID_MAX + 1]; /* "" is a worker: a request that runs in a process of its own */
    pid_t pid;
    uint8_t op;        /* of the request that started it */
    uint32_t request;  /* that waits for an answer, or 0 */
    int progress;      /* read end: what keeps it from execve, or end of file; -1 when known */
    int kept[KEPT];    /* the host's ends of its pipes; -1 when there is none */
    uint16_t kind;     /* FLAG_SESSION, FLAG_TERMINAL or 0 */
    uint32_t error;    /* why it did not start */
    uint16_t stage;
    int answered, exited, watched; /* watched: this connection wants to know the end */
    struct exit_report exit;
};
struct exec *table_add(const char *id);
struct exec *table_find(const char *id);
struct exec *table_at(size_t index); /* NULL past the end */
void table_remove(struct exec *);
void table_reap(void);   /* collects every dead child, of whoever it was */
void table_pay(void);    /* sends answers and ends that are owed */
void table_forget(void); /* the connection is gone: nobody waits any more */
void exec_progress(struct exec *); /* its progress pipe has something to tell */

/* start.c, user.c: commands. Handlers return 0, an errno, or DEFERRED when the answer comes later. */
enum { DEFERRED = -1 };
int start_prepare(const char *nofile); /* limit of descriptors for commands, or NULL */
int start_exec(struct request *, struct reply *);
pid_t fork_guarded(void); /* the child is preferred by the OOM killer */
int become_user(const char *user, int terminal, char **home); /* 0 or an errno; home is "" when unknown */

/* terminal.c: 0 or an errno. */
int terminal_open(uint32_t rows, uint32_t columns, int *master, int *slave);

/* files.c, list.c, remove.c */
int open_outside_proc(const char *path, int flags, mode_t mode);
int describe(struct reply *, int directory, const char *name);
int file_stat(struct request *, struct reply *);
int file_list(struct request *, struct reply *);
int file_read(struct request *, struct reply *);
int file_write(struct request *, struct reply *);
int file_mkdir(struct request *, struct reply *);
int file_symlink(struct request *, struct reply *);
int file_remove(struct request *, struct reply *);

/* serve.c */
void serve(struct request *);
