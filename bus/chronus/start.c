/* Starting a command: everything between the request and execve happens in the child, where it may wait. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "chronus.h"

enum { PROCS, OUT, ERR, HOST_OUT, HOST_ERR, OPTIONAL, STDIN_ENDS = 2, SESSION_ENDS = 6 }; /* as they are passed */
enum { SPARE = 2, PREFERRED_VICTIM = 300, FREE_BASE = SESSION_BASE + 10 };

#define DEFAULT_PATH "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

struct command {
    char *id, *user, *cwd;
    char **argv, **env; /* one allocation; env has room for SPARE more */
    uint32_t envc, rows, columns;
    int *fds, nfds; /* as they were passed; behind `joined` stand further cgroup.procs */
    int joined, progress;
    uint16_t flags;
    int master, slave; /* of its terminal, or -1 */
};

static int null_input = -1;
static int oom_score = -1; /* this process's oom_score_adj, held open */
static int own_score;
static struct rlimit nofile;

static void read_own_score(void) {
    char text[16] = {0};
    oom_score = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    if (oom_score >= 0 && pread(oom_score, text, sizeof text - 1, 0) > 0) own_score = atoi(text);
}

static void set_score(int score) {
    char text[16];
    int length = snprintf(text, sizeof text, "%d", score > 1000 ? 1000 : score);
    if (oom_score >= 0 && pwrite(oom_score, text, (size_t)length, 0) < 0) oom_score = -1;
}

int start_prepare(const char *limit) {
    struct rlimit own;
    null_input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    read_own_score();
    if (null_input < 0 || getrlimit(RLIMIT_NOFILE, &nofile) < 0) return -1;
    own = (struct rlimit){nofile.rlim_max, nofile.rlim_max};
    if (limit) nofile.rlim_cur = nofile.rlim_max = (rlim_t)strtoul(limit, NULL, 10);
    if (nofile.rlim_max > own.rlim_max || !nofile.rlim_max) return errno = EINVAL, -1;
    return setrlimit(RLIMIT_NOFILE, &own);
}

/* The score is inherited, so it is raised around the fork: no process inside is ever born with this one's. Lowering
 * this one's instead would need a privilege, and the inside would inherit the right to go as low. */
pid_t fork_guarded(void) {
    set_score(own_score + PREFERRED_VICTIM);
    pid_t pid = fork();
    int error = errno;
    if (pid) set_score(own_score);
    errno = error;
    return pid;
}

static _Noreturn void give_up(const struct command *command, enum stage stage, int error) {
    uint32_t report[2] = {stage, (uint32_t)error};
    ssize_t told = write(command->progress, report, sizeof report);
    _exit(told == sizeof report ? 127 : 126);
}

static void join_cgroups(const struct command *command) {
    if (write(command->fds[PROCS], "0", 1) != 1) give_up(command, STAGE_CGROUP, errno);
    for (int i = command->joined; i < command->nfds; i++)
        if (write(command->fds[i], "0", 1) != 1) give_up(command, STAGE_CGROUP, errno);
}

static void set_standard_streams(const struct command *command) {
    int in = command->flags & FLAG_STDIN ? command->fds[OPTIONAL] : null_input;
    int out = command->fds[OUT], err = command->fds[ERR];
    if (command->slave >= 0) in = out = err = command->slave;
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) give_up(command, STAGE_STDIO, errno);
}

/* Out of the way first: what was passed may have come under these very numbers. */
static void place_session(struct command *command) {
    int moved[SESSION_ENDS / 2];
    command->progress = fcntl(command->progress, F_DUPFD_CLOEXEC, FREE_BASE);
    if (command->progress < 0) _exit(126);
    for (int i = 0; i < SESSION_ENDS / 2; i++)
        if ((moved[i] = fcntl(command->fds[OPTIONAL + 2 * i], F_DUPFD_CLOEXEC, FREE_BASE)) < 0)
            give_up(command, STAGE_STDIO, errno);
    for (int i = 0; i < SESSION_ENDS / 2; i++)
        if (dup2(moved[i], SESSION_BASE + i) < 0) give_up(command, STAGE_STDIO, errno);
}

static const char *lookup(const struct command *command, const char *name) {
    size_t length = strlen(name);
    for (uint32_t i = 0; i < command->envc; i++)
        if (!strncmp(command->env[i], name, length) && command->env[i][length] == '=') return command->env[i];
    return NULL;
}

static void complete_environment(struct command *command, const char *home) {
    static char variable[PATH_MAX + sizeof "HOME="];
    uint32_t given = command->envc;
    snprintf(variable, sizeof variable, "HOME=%s", *home ? home : "/");
    if (!lookup(command, "HOME")) command->env[given++] = variable;
    if (!lookup(command, "PATH")) command->env[given++] = DEFAULT_PATH;
    command->env[given] = NULL;
}

static void reset_process(void) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    umask(022);
    setrlimit(RLIMIT_NOFILE, &nofile);
}

static _Noreturn void run(struct command *command) {
    char *home = "";
    int error;
    join_cgroups(command);
    set_standard_streams(command);
    if (command->flags & FLAG_SESSION) place_session(command);
    if ((error = become_user(command->user, command->slave, &home))) give_up(command, STAGE_USER, error);
    prctl(PR_SET_DUMPABLE, 0); /* a change of user may have reset it; execve sets it again */
    if (chdir(command->cwd) < 0) give_up(command, STAGE_CWD, errno);
    complete_environment(command, home);
    reset_process();
    if (command->slave >= 0 && ioctl(0, TIOCSCTTY, 0) < 0) give_up(command, STAGE_STDIO, errno);
    environ = command->env; /* its PATH is the one that is searched */
    execvp(command->argv[0], command->argv);
    give_up(command, STAGE_EXEC, errno);
}

/* How many descriptors its kind takes, of which there is at most one. */
static int optional_ends(uint16_t flags) {
    switch (flags & (FLAG_STDIN | FLAG_SESSION | FLAG_TERMINAL)) {
    case 0: case FLAG_TERMINAL: return 0;
    case FLAG_STDIN: return STDIN_ENDS;
    case FLAG_SESSION: return SESSION_ENDS;
    default: return DESCRIPTORS_MAX;
    }
}

static int take_command(struct request *request, struct command *command) {
    uint32_t argc = take_u32(request), envc = take_u32(request);
    *command = (struct command){.envc = envc, .fds = request->fds, .nfds = request->nfds, .master = -1, .slave = -1};
    command->flags = request->head.flags;
    if (command->flags & FLAG_TERMINAL) command->rows = take_u32(request), command->columns = take_u32(request);
    command->id = take_string(request), command->user = take_string(request), command->cwd = take_string(request);
    if (request->bad || !argc || argc > REQUEST_MAX || envc > REQUEST_MAX) return EPROTO;
    if (!*command->id || strlen(command->id) > EXEC_ID_MAX) return EPROTO;
    command->joined = OPTIONAL + optional_ends(command->flags);
    if (request->nfds < command->joined) return EPROTO;
    command->argv = calloc((size_t)argc + 1 + envc + SPARE + 1, sizeof(char *));
    if (!command->argv) return ENOMEM;
    command->env = command->argv + argc + 1;
    for (uint32_t i = 0; i < argc; i++) command->argv[i] = take_string(request);
    for (uint32_t i = 0; i < envc; i++) command->env[i] = take_string(request);
    return request->bad ? EPROTO : 0;
}

/* The host's ends move from the request into the table. */
static void keep(struct exec *exec, struct command *command) {
    int *fds = command->fds;
    exec->kept[KEPT_STDOUT] = fds[HOST_OUT], fds[HOST_OUT] = -1;
    exec->kept[KEPT_STDERR] = fds[HOST_ERR], fds[HOST_ERR] = -1;
    exec->kind = command->flags & (FLAG_SESSION | FLAG_TERMINAL);
    exec->kept[KEPT_STDIN] = command->master;
    int first = exec->kind & FLAG_SESSION ? KEPT_COMMANDS : KEPT_STDIN;
    for (int at = OPTIONAL + 1; at < command->joined; at += 2)
        exec->kept[first + (at - OPTIONAL) / 2] = fds[at], fds[at] = -1;
}

static int spawn(struct exec *exec, struct command *command) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0) return errno;
    command->progress = ends[1];
    exec->progress = ends[0];
    exec->pid = fork_guarded();
    if (!exec->pid) run(command);
    int error = exec->pid < 0 ? errno : 0;
    close(ends[1]);
    return error;
}

static int start(struct request *request, struct command *command) {
    if (table_find(command->id)) return EEXIST;
    struct exec *exec = table_add(command->id);
    if (!exec) return ENOMEM;
    exec->op = OP_START;
    exec->request = request->head.id;
    int error = spawn(exec, command);
    if (error) return table_remove(exec), error;
    keep(exec, command);
    return DEFERRED;
}

static int start_on_terminal(struct request *request, struct command *command) {
    int error = terminal_open(command->rows, command->columns, &command->master, &command->slave);
    if (error) return error;
    error = start(request, command);
    close(command->slave);
    if (error > 0) close(command->master);
    return error;
}

int start_exec(struct request *request, struct reply *reply) {
    struct command command;
    int error = take_command(request, &command);
    if (!error) error = (command.flags & FLAG_TERMINAL ? start_on_terminal : start)(request, &command);
    free(command.argv);
    if (error > 0) reply->head.flags = STAGE_FORK;
    return error;
}
