/* PID 1 of a worker: makes boxes and the zygote when the node asks, and reaps. */
#include "fn.h"
#include "kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int mount(const char *, const char *, const char *, unsigned long, const void *);

enum { ZYGOTE_USER = 1 };
enum { BOX_NAMESPACES = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS };

static long born(uint64_t flags, int *pidfd) {
    struct clone_args how = {
        .flags = flags | CLONE_PIDFD, .pidfd = (uint64_t)(uintptr_t)pidfd, .exit_signal = SIGCHLD};
    return syscall(SYS_clone3, &how, sizeof how);
}

/* It may join namespaces of boxes, for which it keeps CAP_SYS_ADMIN over the worker, and nothing else. */
static int confine_zygote(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    uint32_t one = 1U << CAP_SYS_ADMIN;
    struct __user_cap_data_struct only[2] = {{one, one, one}, {0, 0, 0}};
    for (int cap = 0; cap < 64; cap++)
        if (cap != CAP_SYS_ADMIN && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0 && errno != EINVAL)
            return -1;
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0 || syscall(SYS_setresgid, ZYGOTE_USER, ZYGOTE_USER, ZYGOTE_USER) < 0 ||
        syscall(SYS_setresuid, ZYGOTE_USER, ZYGOTE_USER, ZYGOTE_USER) < 0 || syscall(SYS_capset, &header, only) < 0 ||
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_ADMIN, 0, 0) < 0 ||
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    return filter(1);
}

static void be_zygote(struct received *asked) {
    static char *environment[] = {"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "TMPDIR=/tmp",
        "LANG=C.UTF-8", "USER=call", 0};
    asked->strings[asked->count] = 0;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, 0);
    if (unshare(CLONE_NEWNS) < 0 || mount("tmp", "/tmp", "tmpfs", 2 | 4, "size=64m,mode=1777") < 0 ||
        dup2(asked->fds[1], 1) < 0 || dup2(asked->fds[1], 2) < 0 || dup2(asked->fds[0], 3) < 0 ||
        syscall(SYS_close_range, 4, ~0U, 0) < 0 || confine_zygote() < 0) {
        dprintf(2, "starting the zygote: %s\n", strerror(errno));
        _exit(1);
    }
    execve(asked->strings[0], asked->strings, environment);
    dprintf(2, "%s: %s\n", asked->strings[0], strerror(errno));
    _exit(127);
}

static void start_zygote(struct received *asked) {
    int pidfd = -1;
    long pid = asked->nfds == 2 && asked->count ? born(0, &pidfd) : -1;
    if (!pid)
        be_zygote(asked);
    struct answer told = {.op = ZYGOTE, .error = pid < 0 ? (uint32_t)errno : 0};
    answer(CONTROL, &told, &pidfd, pid > 0);
    if (pid > 0)
        close(pidfd);
}

/* The ids of a box are those of its worker. */
static int map_ids(long pid) {
    static const char *const maps[] = {"uid_map", "gid_map"}, all[] = "0 0 65536";
    for (int i = 0; i < 2; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%ld/%s", pid, maps[i]);
        int file = open(path, O_WRONLY | O_CLOEXEC);
        ssize_t done = file < 0 ? -1 : write(file, all, sizeof all - 1);
        if (file >= 0)
            close(file);
        if (done < 0)
            return -1;
    }
    return 0;
}

static void make_box(const struct received *asked) {
    int pair[2], pidfd = -1;
    struct answer told = {.op = BOX};
    long pid = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0 ? -2 : born(BOX_NAMESPACES, &pidfd);
    if (!pid) {
        close(pair[0]);
        box(pair[1], asked);
    }
    if (pid < 0 || map_ids(pid) < 0)
        told.error = (uint32_t)errno;
    int given[] = {pidfd, pair[0]};
    if (pid > 0 && told.error)
        syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, 0, 0);
    else if (pid > 0)
        send(pair[0], "go", 2, MSG_NOSIGNAL);
    answer(CONTROL, &told, given, told.error ? 0 : 2);
    if (pid > 0)
        close(pidfd);
    if (pid > -2)
        close_all(pair, 2);
}

static void obey(void) {
    static struct received asked;
    int got = receive(CONTROL, &asked);
    if (!got)
        _exit(0); /* the node is gone */
    if (got > 0 && asked.order.op == ZYGOTE)
        start_zygote(&asked);
    else if (got > 0 && asked.order.op == BOX)
        make_box(&asked);
    close_all(asked.fds, asked.nfds);
}

void stem(void) {
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, 0);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    fcntl(CONTROL, F_SETFD, FD_CLOEXEC);
    int died = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
    struct pollfd ready[] = {{CONTROL, POLLIN, 0}, {died, POLLIN, 0}};
    for (;;) {
        if (poll(ready, 2, -1) < 0)
            continue;
        struct signalfd_siginfo told;
        while (read(died, &told, sizeof told) > 0)
            ;
        while (waitpid(-1, 0, WNOHANG) > 0)
            ;
        if (ready[0].revents)
            obey();
    }
}
