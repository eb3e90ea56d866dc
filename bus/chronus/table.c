/* Execs from their start to their release: what is kept of them, and what the host is still owed. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "chronus.h"

static struct exec *table;
static size_t used, room;

struct exec *table_at(size_t index) { return index < used ? &table[index] : NULL; }

struct exec *table_add(const char *id) {
    if (used == room) {
        size_t larger = room ? 2 * room : 32;
        struct exec *moved = realloc(table, larger * sizeof *table);
        if (!moved) return NULL;
        table = moved, room = larger;
    }
    struct exec *exec = &table[used++];
    *exec = (struct exec){.progress = -1, .watched = 1};
    for (int i = 0; i < KEPT; i++) exec->kept[i] = -1;
    strncpy(exec->id, id, EXEC_ID_MAX);
    return exec;
}

struct exec *table_find(const char *id) {
    for (size_t i = 0; i < used && *id; i++)
        if (!strcmp(table[i].id, id)) return &table[i];
    return NULL;
}

static struct exec *find_pid(pid_t pid) {
    for (size_t i = 0; i < used; i++)
        if (table[i].pid == pid && !table[i].exited) return &table[i];
    return NULL;
}

static void close_if_open(int fd) {
    if (fd >= 0) close(fd);
}

void table_remove(struct exec *exec) {
    close_if_open(exec->progress);
    for (int i = 0; i < KEPT; i++) close_if_open(exec->kept[i]);
    *exec = table[--used];
}

/* A command that could not be executed while nobody was connected ends as a shell would tell it. */
static void fail_as_exit(struct exec *exec) {
    exec->error = 0;
    exec->exited = 1;
    exec->exit.code = 127;
}

void exec_progress(struct exec *exec) {
    uint32_t report[2] = {0, 0};
    if (exec->progress < 0) return;
    ssize_t length = read(exec->progress, report, sizeof report);
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
    close(exec->progress);
    exec->progress = -1;
    if (length == sizeof report) exec->stage = (uint16_t)report[0], exec->error = report[1];
    exec->answered = !exec->request;
    if (exec->error && !exec->request) fail_as_exit(exec);
}

static uint64_t microseconds(struct timeval t) { return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_usec; }

static void record_exit(struct exec *exec, int status, const struct rusage *usage) {
    exec_progress(exec); /* a death is told after the start */
    if (exec->exited) return;
    exec->exited = 1;
    exec->exit = (struct exit_report){
        .code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
        .signal = WIFSIGNALED(status) ? (uint32_t)WTERMSIG(status) : 0,
        .cpu_us = microseconds(usage->ru_utime) + microseconds(usage->ru_stime),
        .max_rss = (uint64_t)usage->ru_maxrss * 1024,
    };
}

void table_reap(void) {
    struct rusage usage;
    int status;
    pid_t pid;
    while ((pid = wait4(-1, &status, WNOHANG, &usage)) > 0) {
        struct exec *exec = find_pid(pid);
        if (exec) record_exit(exec, status, &usage);
    }
}

/* A worker's exit status is its errno; one that the sandbox killed was interrupted. */
static uint32_t worker_error(const struct exec *exec) {
    return exec->exit.signal ? EINTR : (uint32_t)exec->exit.code;
}

static int pay_answer(struct exec *exec) {
    static struct reply reply;
    int worker = !*exec->id;
    if (exec->answered || exec->progress >= 0 || (worker && !exec->exited)) return 1;
    reply.head = (struct head){.version = VERSION, .op = exec->op, .id = exec->request, .flags = exec->stage};
    reply.head.error = worker ? worker_error(exec) : exec->error;
    return exec->answered = channel_send(&reply);
}

static int pay_exit(struct exec *exec) {
    static struct reply reply;
    if (!exec->exited || !exec->watched || exec->error || !*exec->id) return 1;
    reply.head = (struct head){.version = VERSION, .op = OP_EXITED};
    reply.length = 0;
    put(&reply, &exec->exit, sizeof exec->exit);
    put(&reply, exec->id, strlen(exec->id) + 1);
    if (!channel_send(&reply)) return 0;
    exec->watched = 0;
    return 1;
}

static int over(const struct exec *exec) {
    if (!*exec->id) return exec->exited && exec->answered;
    return exec->error && exec->answered && exec->request; /* its failure was told */
}

void table_pay(void) {
    for (size_t i = used; i-- > 0 && !channel_blocked();) {
        if (!pay_answer(&table[i]) || !pay_exit(&table[i])) return;
        if (over(&table[i])) table_remove(&table[i]);
    }
}

void table_forget(void) {
    for (size_t i = used; i-- > 0;) {
        struct exec *exec = &table[i];
        int told = over(exec);
        if (exec->error && !exec->exited) fail_as_exit(exec);
        exec->request = 0;
        exec->watched = 0;
        exec->answered = exec->progress < 0 || !*exec->id;
        if (told) table_remove(exec);
    }
}
