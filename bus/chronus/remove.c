/* Removal. A tree may be as large as the sandbox likes, so a worker does that; its exit status is the errno. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "chronus.h"

enum { DEPTH_MAX = 512, PASSES = 3 };

static int remove_tree(int parent, const char *name, int depth);

/* errno of unlinking a directory is EISDIR on Linux; some file systems say EPERM as POSIX has it. */
static int remove_one(int parent, const char *name) {
    if (!unlinkat(parent, name, 0)) return 0;
    if (errno != EISDIR && errno != EPERM) return errno;
    int first = errno;
    if (!unlinkat(parent, name, AT_REMOVEDIR)) return 0;
    return errno == ENOTDIR ? first : errno;
}

static int remove_entries(DIR *directory, int depth) {
    struct dirent *entry;
    int worst = 0;
    while ((entry = readdir(directory))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        int error = remove_tree(dirfd(directory), entry->d_name, depth + 1);
        if (error && error != ENOENT) worst = error;
    }
    return worst;
}

static int empty(int parent, const char *name, int depth) {
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (!directory) {
        int error = errno;
        if (fd >= 0) close(fd);
        return error;
    }
    int error = remove_entries(directory, depth);
    closedir(directory);
    return error;
}

/* Others may add entries meanwhile, hence the passes. */
static int remove_tree(int parent, const char *name, int depth) {
    int error = remove_one(parent, name);
    if (depth > DEPTH_MAX) return error ? ELOOP : 0;
    for (int pass = 0; pass < PASSES && (error == ENOTEMPTY || error == EEXIST); pass++) {
        int inner = empty(parent, name, depth);
        if (inner && inner != ENOENT) return inner;
        error = remove_one(parent, name);
    }
    return error;
}

static int start_worker(struct request *request, const char *path) {
    struct exec *worker = table_add("");
    if (!worker) return ENOMEM;
    worker->op = request->head.op;
    worker->request = request->head.id;
    worker->pid = fork_guarded();
    if (!worker->pid) _exit(remove_tree(AT_FDCWD, path, 0));
    if (worker->pid > 0) return DEFERRED;
    int error = errno;
    table_remove(worker);
    return error;
}

int file_remove(struct request *request, struct reply *reply) {
    char *path = take_string(request);
    (void)reply;
    if (request->bad || !*path) return EPROTO;
    if (!(request->head.flags & FLAG_RECURSIVE)) return remove_one(AT_FDCWD, path);
    int error = remove_one(AT_FDCWD, path);
    return error == ENOTEMPTY || error == EEXIST ? start_worker(request, path) : error;
}
