/* chronus: PID 1 of a sandbox and the platform's agent inside it.
 *
 * Standard input is a listening SEQPACKET socket that is bound in the host's file system. chronus starts commands
 * on pipes it is given, reaps every orphan, keeps the host's pipe ends and exit statuses until they are released,
 * and reads and writes files. It copies no output, opens no address and leaves nothing visible inside.
 *
 * The sandbox is the enemy: all signals are blocked, memory and descriptors are closed to ptrace and /proc, nothing
 * that can wait (execve, user look-up, deep removal) runs in this process, and no input makes it exit.
 *
 * Usage: chronus [NOFILE]   (NOFILE: descriptors a command may have; default: as inherited) */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "chronus.h"

enum { CAP_SYS_PTRACE = 19, CAP_PERFMON = 38 }; /* linux/capability.h, which musl does not bring */
enum { LISTENER, SIGNALS, CHANNEL, PROGRESS, BURST = 32 };

static struct pollfd *watched;
static size_t room;
static int signals;

static int fail(const char *what) {
    perror(what);
    return 1;
}

/* Nothing inherited reaches a command; 0-2 are taken for good, so that descriptors passed later never collide with
 * a child's standard streams. */
static int hold_standard_streams(void) {
    int fd;
    syscall(SYS_close_range, 3U, ~0U, 0U);
    do {
        if ((fd = open("/dev/null", O_RDWR | O_CLOEXEC)) < 0) return -1;
    } while (fd < 3);
    close(fd);
    for (fd = 0; fd < 3; fd++) fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
}

/* These capabilities would open this process to root inside in spite of its not being dumpable. */
static int close_to_inside(void) {
    prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE);
    prctl(PR_CAPBSET_DROP, CAP_PERFMON);
    return prctl(PR_SET_DUMPABLE, 0);
}

/* By the kernel's own call: the library keeps a few real-time signals to itself, and a launcher may ignore those. */
static void reset_dispositions(void) {
    static const char all_zero[64]; /* struct kernel_sigaction of any architecture: SIG_DFL, no flags, no mask */
    for (int number = 1; number < _NSIG; number++)
        syscall(SYS_rt_sigaction, number, all_zero, NULL, (size_t)(_NSIG / 8));
}

/* Ignored ones would stay so for commands; blocked ones wait here for ever. */
static int watch_signals(void) {
    sigset_t set;
    reset_dispositions();
    sigfillset(&set);
    sigprocmask(SIG_SETMASK, &set, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return signals;
}

/* Whom to listen to now. Without memory for all, the execs past the room are looked at when their child ends. */
static size_t watch(void) {
    size_t count = PROGRESS;
    struct exec *exec;
    while (table_at(count - PROGRESS)) count++;
    if (count > room) {
        struct pollfd *larger = realloc(watched, 2 * count * sizeof *watched);
        if (larger) watched = larger, room = 2 * count;
    }
    watched[LISTENER] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    watched[SIGNALS] = (struct pollfd){.fd = signals, .events = POLLIN};
    watched[CHANNEL] = (struct pollfd){.fd = channel_descriptor(), .events = channel_blocked() ? POLLOUT : POLLIN};
    for (count = PROGRESS; count < room && (exec = table_at(count - PROGRESS)); count++)
        watched[count] = (struct pollfd){.fd = exec->progress, .events = POLLIN};
    return count;
}

static void reap(void) {
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) > 0) continue;
    table_reap();
}

static void talk(void) {
    struct request request;
    if (!channel_flush()) return;
    for (int i = 0; i < BURST && !channel_blocked() && channel_receive(&request); i++) serve(&request);
    if (channel_descriptor() == CHANNEL_CLOSED) table_forget();
}

static void turn(void) {
    size_t count = watch();
    if (poll(watched, count, -1) <= 0) return;
    for (size_t i = PROGRESS; i < count; i++)
        if (watched[i].revents) exec_progress(table_at(i - PROGRESS));
    if (watched[SIGNALS].revents) reap();
    if (watched[CHANNEL].revents) talk();
    if (watched[LISTENER].revents && channel_accept()) table_forget();
    table_pay();
}

int main(int argc, char **argv) {
    umask(0);
    if (chdir("/") < 0) return fail("chdir /");
    if (hold_standard_streams() < 0) return fail("standard streams");
    if (start_prepare(argc > 1 ? argv[1] : NULL) < 0) return fail("limits");
    if (close_to_inside() < 0) return fail("PR_SET_DUMPABLE");
    if (watch_signals() < 0) return fail("signalfd");
    if (!(watched = calloc(room = 64, sizeof *watched))) return fail("memory");
    for (;;) turn();
}
