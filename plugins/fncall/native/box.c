/* PID 1 of one call. Code of the call is another user without capabilities and cannot touch it. */
#include "fn.h"
#include "kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int mount(const char *, const char *, const char *, unsigned long, const void *);

enum { NOSUID = 2, NODEV = 4, NOEXEC = 8, BIND = 4096 };
static const char *const NAMESPACES[] = {"user", "cgroup", "ipc", "uts", "net", "mnt", "pid"};
enum { HOW_MANY = sizeof NAMESPACES / sizeof *NAMESPACES };

static int home;           /* the working directory of the call */
static pid_t leader;       /* the program that was asked for */
static uint32_t *complaint; /* why it could not be executed, told by the child */

static void fail(int socket, const char *what) {
    struct answer told = {.op = BOX, .error = (uint32_t)errno};
    snprintf(told.text, sizeof told.text, "%s", what);
    answer(socket, &told, 0, 0);
    _exit(1);
}

static int furnish(uint64_t bytes, uint32_t inodes) {
    char options[96];
    snprintf(options, sizeof options, "size=%llu,nr_inodes=%u,mode=1777", (unsigned long long)bytes, inodes);
    umask(0);
    if (mount("proc", "/proc", "proc", NOSUID | NODEV | NOEXEC, 0) < 0 ||
        mount("tmp", "/tmp", "tmpfs", NOSUID | NODEV, options) < 0 || mkdir("/tmp/.shm", 01777) < 0 ||
        mkdir("/tmp/work", 0755) < 0 || chown("/tmp/work", USER, USER) < 0 ||
        mount("/tmp/.shm", "/dev/shm", 0, BIND, 0) < 0)
        return -1;
    umask(022);
    return home = open("/tmp/work", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static int loopback(void) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int done = any < 0 ? -1 : ioctl(any, SIOCSIFFLAGS, &request);
    close(any);
    return done;
}

static void ready(int socket) {
    int namespaces[HOW_MANY];
    for (int i = 0; i < HOW_MANY; i++) {
        char path[32];
        snprintf(path, sizeof path, "/proc/self/ns/%s", NAMESPACES[i]);
        namespaces[i] = open(path, O_RDONLY | O_CLOEXEC);
        if (namespaces[i] < 0)
            fail(socket, path);
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || filter(0) < 0)
        fail(socket, "seccomp");
    struct answer told = {.op = BOX};
    answer(socket, &told, namespaces, HOW_MANY);
    close_all(namespaces, HOW_MANY);
}

static void start(int socket, const struct received *asked) {
    struct answer told = {.op = RUN};
    *complaint = 0;
    leader = asked->nfds == 3 && !leader ? fork() : -1;
    if (!leader)
        program(asked, complaint);
    if (leader < 0) {
        told.error = (uint32_t)errno;
        answer(socket, &told, 0, 0);
        leader = 0;
    }
}

static void reap(int socket) {
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (pid != leader)
            continue;
        struct answer told = {.op = RUN, .error = *complaint, .status = (uint32_t)status};
        answer(socket, &told, 0, 0);
        leader = 0;
    }
}

static void obey(int socket) {
    static struct received asked;
    int got = receive(socket, &asked), file = -1;
    if (!got)
        _exit(0);
    struct answer told = {.op = got < 0 ? 0 : asked.order.op};
    if (got > 0 && told.op == RUN) {
        start(socket, &asked);
    } else {
        errno = EBADMSG;
        int done = told.op == PUT && asked.nfds && asked.count   ? put(home, &asked)
                   : told.op == GET && asked.count ? file = get(home, asked.strings[0], &told.value)
                                                               : -1;
        told.error = done < 0 ? (uint32_t)errno : 0;
        answer(socket, &told, &file, file >= 0);
    }
    if (file >= 0)
        close(file);
    close_all(asked.fds, asked.nfds);
}

static void serve(int socket) {
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, 0);
    int died = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
    struct pollfd waiting[] = {{socket, POLLIN, 0}, {died, POLLIN, 0}};
    ready(socket);
    for (;;) {
        if (poll(waiting, 2, -1) < 0)
            continue;
        struct signalfd_siginfo told;
        while (read(died, &told, sizeof told) > 0)
            ;
        reap(socket);
        if (waiting[0].revents)
            obey(socket);
    }
}

void box(int socket, const struct received *asked) {
    char go[2];
    close(CONTROL);
    if (recv(socket, go, sizeof go, 0) != sizeof go)
        _exit(1);
    for (int i = 0; i < asked->nfds; i++)
        if (write(asked->fds[i], "0", 1) < 0)
            fail(socket, "cgroup");
    close_all(asked->fds, asked->nfds);
    complaint = mmap(0, sizeof *complaint, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (complaint == MAP_FAILED || unshare(CLONE_NEWCGROUP) < 0)
        fail(socket, "cgroup namespace");
    if (furnish(asked->order.value, asked->order.argc) < 0)
        fail(socket, "mounts");
    if (loopback() < 0)
        fail(socket, "loopback");
    serve(socket);
}
