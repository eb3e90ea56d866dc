/* Files as root inside sees them. Nothing here waits: no fifo, no device, no leased file. procfs is refused, since
 * /proc/self would be this process. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "chronus.h"

enum { PROC_SUPER_MAGIC = 0x9fa0 }; /* linux/magic.h, which musl does not bring */

int open_outside_proc(const char *path, int flags, mode_t mode) {
    struct statfs fs;
    int fd = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode);
    if (fd < 0) return -1;
    int error = fstatfs(fd, &fs) < 0 ? errno : fs.f_type == PROC_SUPER_MAGIC ? EACCES : 0;
    if (!error) return fd;
    close(fd);
    errno = error;
    return -1;
}

static int open_regular(const char *path, int flags, mode_t mode) {
    struct stat info;
    int fd = open_outside_proc(path, flags, mode);
    if (fd < 0) return -1;
    if (!fstat(fd, &info) && S_ISREG(info.st_mode)) return fd;
    close(fd);
    errno = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
    return -1;
}

/* Adds the entry `name` of `directory`; with name "" the (O_PATH) descriptor itself. 0, an errno, or ENOBUFS. */
int describe(struct reply *reply, int directory, const char *name) {
    struct stat info;
    char target[PATH_MAX];
    size_t start = reply->length;
    if (fstatat(directory, name, &info, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) < 0) return errno;
    ssize_t length = S_ISLNK(info.st_mode) ? readlinkat(directory, name, target, sizeof target - 1) : 0;
    if (length < 0) return errno;
    target[length] = 0;
    struct entry entry = {
        .size = (uint64_t)info.st_size,
        .mtime_ns = (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec,
        .mode = info.st_mode, .uid = info.st_uid, .gid = info.st_gid,
    };
    if (put(reply, &entry, sizeof entry) && put(reply, name, strlen(name) + 1) &&
        put(reply, target, (size_t)length + 1))
        return 0;
    reply->length = start;
    return ENOBUFS;
}

int file_stat(struct request *request, struct reply *reply) {
    char *path = take_string(request);
    if (request->bad) return EPROTO;
    int fd = open_outside_proc(path, O_PATH | O_NOFOLLOW, 0);
    if (fd < 0) return errno;
    int error = describe(reply, fd, "");
    close(fd);
    return error;
}

static ssize_t read_fully(int fd, char *into, size_t length, uint64_t offset) {
    size_t done = 0;
    while (done < length) {
        ssize_t got = pread(fd, into + done, length - done, (off_t)(offset + done));
        if (got < 0) return -1;
        if (!got) break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

int file_read(struct request *request, struct reply *reply) {
    uint64_t offset = take_u64(request);
    uint32_t length = take_u32(request);
    char *path = take_string(request);
    if (request->bad || length > DATA_MAX) return EPROTO;
    int fd = open_regular(path, O_RDONLY, 0);
    if (fd < 0) return errno;
    ssize_t got = read_fully(fd, reply->body, length, offset);
    int error = got < 0 ? errno : 0;
    reply->length = got < 0 ? 0 : (size_t)got;
    close(fd);
    return error;
}

static int make_parents(const char *path) {
    char part[PATH_MAX];
    for (const char *slash = path; (slash = strchr(slash + 1, '/'));) {
        size_t length = (size_t)(slash - path);
        if (length >= sizeof part) return ENAMETOOLONG;
        memcpy(part, path, length);
        part[length] = 0;
        if (mkdir(part, 0755) < 0 && errno != EEXIST) return errno;
    }
    return 0;
}

static int write_fully(int fd, const char *data, size_t length, uint64_t offset) {
    while (length) {
        ssize_t put = pwrite(fd, data, length, (off_t)offset);
        if (put < 0) return errno;
        data += put, length -= (size_t)put, offset += (uint64_t)put;
    }
    return 0;
}

int file_write(struct request *request, struct reply *reply) {
    uint64_t offset = take_u64(request);
    mode_t mode = take_u32(request) & 07777;
    char *path = take_string(request);
    (void)reply;
    if (request->bad || !*path) return EPROTO;
    int fd = open_regular(path, O_WRONLY | O_CREAT, mode);
    if (fd < 0 && errno == ENOENT && !make_parents(path)) fd = open_regular(path, O_WRONLY | O_CREAT, mode);
    if (fd < 0) return errno;
    int afresh = request->head.flags & FLAG_TRUNCATE;
    int error = afresh && (ftruncate(fd, 0) < 0 || fchmod(fd, mode) < 0) ? errno : 0;
    if (!error) error = write_fully(fd, request->at, (size_t)(request->end - request->at), offset);
    close(fd);
    return error;
}

/* A directory that is there already is left as it is. */
int file_mkdir(struct request *request, struct reply *reply) {
    mode_t mode = take_u32(request) & 07777;
    char *path = take_string(request);
    struct stat info;
    (void)reply;
    if (request->bad || !*path) return EPROTO;
    int error = make_parents(path);
    if (error) return error;
    if (!mkdir(path, mode)) return 0;
    error = errno;
    return error == EEXIST && !stat(path, &info) && S_ISDIR(info.st_mode) ? 0 : error;
}

int file_symlink(struct request *request, struct reply *reply) {
    char *path = take_string(request), *target = take_string(request);
    (void)reply;
    if (request->bad || !*path) return EPROTO;
    if (!symlink(target, path)) return 0;
    if (errno != ENOENT) return errno;
    int error = make_parents(path);
    return error ? error : symlink(target, path) < 0 ? errno : 0;
}
