/* Files into and out of a box, and the program of a call. */
#include "fn.h"
#include "kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char **environ;

static int beneath(int directory, const char *name, uint64_t flags, uint64_t mode) {
    struct open_how how = {
        .flags = flags | O_CLOEXEC, .mode = mode, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
    return (int)syscall(SYS_openat2, directory, name, &how, sizeof how);
}

static int parents(int directory, char *name) {
    for (char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        int made = mkdirat(directory, name, 0755), number = errno;
        if (!made && fchownat(directory, name, USER, USER, AT_SYMLINK_NOFOLLOW) < 0)
            return -1;
        *slash = '/';
        if (made < 0 && number != EEXIST)
            return -1;
    }
    return 0;
}

int put(int directory, const struct received *asked) {
    char *name = asked->strings[0];
    if (parents(directory, name) < 0)
        return -1;
    int file = beneath(directory, name, O_WRONLY | O_CREAT | O_EXCL, asked->order.argc & 0777);
    if (file < 0)
        return -1;
    off_t at = 0;
    ssize_t moved = 1;
    while (moved > 0)
        moved = sendfile(file, asked->fds[0], &at, 1 << 20);
    int done = moved < 0 || fchown(file, USER, USER) < 0 ? -1 : 0, number = errno;
    close(file);
    errno = number;
    return done;
}

int get(int directory, const char *name, uint64_t *size) {
    struct stat told;
    int file = beneath(directory, name, O_RDONLY | O_NONBLOCK, 0);
    if (file < 0)
        return -1;
    if (fstat(file, &told) < 0 || !S_ISREG(told.st_mode)) {
        close(file);
        errno = EINVAL;
        return -1;
    }
    *size = (uint64_t)told.st_size;
    return file;
}

static int limit(int what, uint64_t soft, uint64_t hard) {
    struct rlimit both = {soft, hard};
    return setrlimit(what, &both);
}

static int prepare(const struct received *asked) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, 0);
    uint64_t seconds = asked->order.value;
    for (int i = 0; i < 3; i++)
        if (dup2(asked->fds[i], i) < 0)
            return -1;
    if (setsid() < 0 || syscall(SYS_close_range, 3, ~0U, 0) < 0 || limit(RLIMIT_CORE, 0, 0) < 0 ||
        limit(RLIMIT_NOFILE, asked->order.nofile, asked->order.nofile) < 0 ||
        (seconds && limit(RLIMIT_CPU, seconds, seconds + 1) < 0) || chdir("/tmp/work") < 0 ||
        syscall(SYS_setgroups, 0, 0) < 0 || syscall(SYS_setresgid, USER, USER, USER) < 0)
        return -1;
    return (int)syscall(SYS_setresuid, USER, USER, USER);
}

/* The strings are arguments, then variables; a user other than root has no capability left. */
void program(const struct received *asked, uint32_t *error) {
    char *arguments[1024];
    int argc = (int)asked->order.argc;
    if (argc < 1 || argc + (int)asked->order.envc != asked->count) {
        *error = EINVAL;
        _exit(127);
    }
    memcpy(arguments, asked->strings, sizeof(char *) * (size_t)argc);
    arguments[argc] = 0;
    environ = (char **)asked->strings + argc;
    environ[asked->order.envc] = 0;
    if (prepare(asked) == 0)
        execvp(arguments[0], arguments);
    *error = (uint32_t)errno;
    _exit(127);
}
