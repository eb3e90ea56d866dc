/* From the node's root into a worker: its user namespace, its read-only root file system, its PID 1. */
#include "fn.h"
#include "kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

int mount(const char *, const char *, const char *, unsigned long, const void *);
int umount2(const char *, int);
int sethostname(const char *, size_t);

static const char *const STAGE = "/dev"; /* a directory that every host has */

static long need(long result, const char *what) {
    if (result < 0) {
        dprintf(2, "%s: %s\n", what, strerror(errno));
        _exit(1);
    }
    return result;
}

static void restrict_mount(int mount, uint64_t flags) {
    struct mount_attr attributes = {.attr_set = flags};
    need(syscall(SYS_mount_setattr, mount, "", AT_EMPTY_PATH, &attributes, sizeof attributes), "mount_setattr");
}

static int detached(const char *type, const char *key, const char *value) {
    int context = (int)need(syscall(SYS_fsopen, type, FSOPEN_CLOEXEC), type);
    if (key)
        need(syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, key, value, 0), key);
    need(syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, 0, 0, 0), type);
    int made = (int)need(syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, 0), "fsmount");
    close(context);
    return made;
}

/* `dev:NAME:MAJOR:MINOR`: a device that the node's operator declared. */
static void declared(int at, char *what) {
    char *name = strtok(what + 4, ":"), *major = strtok(0, ":"), *minor = strtok(0, ":"), *slash;
    need(name && major && minor ? 0 : (errno = EINVAL, -1), "a declared device");
    if ((slash = strchr(name, '/'))) {
        *slash = 0;
        if (mkdirat(at, name, 0755) < 0 && errno != EEXIST)
            need(-1, name);
        *slash = '/';
    }
    need(mknodat(at, name, S_IFCHR | 0666, makedev((unsigned)atoi(major), (unsigned)atoi(minor))), name);
}

static int is_device(const char *argument) {
    return !strncmp(argument, "dev:", 4);
}

/* Device nodes cannot be made in a user namespace; these lie in no path of the host. */
static int devices(char **more) {
    static const struct { const char *name; unsigned minor; } all[] = {
        {"null", 3}, {"zero", 5}, {"full", 7}, {"random", 8}, {"urandom", 9}};
    static const char *const links[][2] = {{"/proc/self/fd", "fd"},
        {"/proc/self/fd/0", "stdin"}, {"/proc/self/fd/1", "stdout"}, {"/proc/self/fd/2", "stderr"}};
    int at = detached("tmpfs", "mode", "755");
    umask(0);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        need(mknodat(at, all[i].name, S_IFCHR | 0666, makedev(1, all[i].minor)), "mknod");
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        need(symlinkat(links[i][0], at, links[i][1]), "symlink");
    need(mkdirat(at, "shm", 0755), "mkdir");
    for (; *more; more++)
        if (is_device(*more))
            declared(at, *more);
    restrict_mount(at, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    return at;
}

/* No symbolic link of an image leads the platform astray. */
static void attach(int mount, const char *path) {
    struct open_how how = {
        .flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    int at = (int)need(syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how), path);
    need(syscall(SYS_move_mount, mount, "", at, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH), path);
    close(at);
    close(mount);
}

static void furnish(int root, int dev) {
    need(mount(0, "/", 0, 1 << 18 | 1 << 14, 0), "making mounts private"); /* MS_PRIVATE | MS_REC */
    need(syscall(SYS_move_mount, root, "", AT_FDCWD, STAGE, MOVE_MOUNT_F_EMPTY_PATH), "the root");
    need(chdir(STAGE), STAGE);
    int proc = detached("proc", 0, 0);
    restrict_mount(proc, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    attach(proc, "proc");
    attach(dev, "dev");
    need(syscall(SYS_pivot_root, ".", "."), "pivot_root");
    need(umount2(".", 2), "leaving the host"); /* MNT_DETACH */
    need(chdir("/"), "/");
    need(sethostname("call", 4), "sethostname");
}

static void become_stem(int root, int dev) {
    need(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
    furnish(root, dev);
    char *arguments[] = {"fncall", "stem", 0}, *environment[] = {0};
    need(dup2(open("/dev/null", O_RDWR), 0), "dup2");
    need(syscall(SYS_close_range, PROGRAM + 1, ~0U, 0), "close_range");
    /* executed again so that its memory belongs to the worker's user namespace, not the host's */
    syscall(SYS_execveat, PROGRAM, "", arguments, environment, AT_EMPTY_PATH);
    need(-1, "execveat");
}

/* Whoever started the node may have ignored some, and that would be inherited by every call. */
static void default_signals(void) {
    struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } plain = {0};
    for (int number = 1; number <= 64; number++)
        syscall(SYS_rt_sigaction, number, &plain, 0, 8);
}

static void join(const char *cgroup) {
    int group = (int)need(open(cgroup, O_WRONLY | O_CLOEXEC), cgroup);
    need(write(group, "0", 1), cgroup);
    close(group);
}

void enter(const char *root, char **more) {
    default_signals();
    for (char **one = more; *one; one++)
        if (!is_device(*one))
            join(*one);
    int tree = (int)need(
        syscall(SYS_open_tree, AT_FDCWD, root, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC), root);
    restrict_mount(tree, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    int dev = devices(more);
    need(setns(USER_NAMESPACE, CLONE_NEWUSER), "the user namespace");
    need(syscall(SYS_setgroups, 0, 0), "setgroups");
    need(syscall(SYS_setresgid, 0, 0, 0), "setresgid");
    need(syscall(SYS_setresuid, 0, 0, 0), "setresuid");
    need(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
    struct clone_args how = {
        .flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS,
        .exit_signal = SIGCHLD};
    long child = need(syscall(SYS_clone3, &how, sizeof how), "clone3");
    if (!child)
        become_stem(tree, dev);
    close(CONTROL);
    int status;
    waitpid((pid_t)child, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

int main(int argc, char **argv) {
    if (argc >= 3 && !strcmp(argv[1], "enter"))
        enter(argv[2], argv + 3);
    if (argc == 2 && !strcmp(argv[1], "stem"))
        stem();
    dprintf(2, "run by the fncall plugin of dsec, not by hand\n");
    return 2;
}
