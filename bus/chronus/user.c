/* "name", "uid", "name:group" or "uid:gid", by the /etc/passwd and /etc/group inside and nothing else. Runs in the
 * child: those files belong to the sandbox. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "chronus.h"

enum { GROUPS_MAX = 256 };

struct identity {
    uid_t uid;
    gid_t gid;
    gid_t groups[GROUPS_MAX];
    size_t count;
};

static FILE *open_database(const char *path) {
    struct stat info;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0 && !fstat(fd, &info) && S_ISREG(info.st_mode)) return fdopen(fd, "r");
    if (fd >= 0) close(fd);
    return NULL;
}

static int number(const char *text, uint32_t *value) {
    char *end;
    errno = 0;
    unsigned long parsed = strtoul(text, &end, 10);
    *value = (uint32_t)parsed;
    return *text >= '0' && *text <= '9' && !*end && !errno && parsed < UINT32_MAX;
}

static struct passwd *find_user(FILE *file, const char *name) {
    uint32_t uid = 0;
    int numeric = number(name, &uid);
    struct passwd *user = NULL;
    while (file && (user = fgetpwent(file)))
        if (!strcmp(user->pw_name, name) || (numeric && user->pw_uid == uid)) break;
    return user;
}

static int is_member(const struct group *group, const char *name) {
    for (char **member = group->gr_mem; *member; member++)
        if (!strcmp(*member, name)) return 1;
    return 0;
}

static void add_groups_of(struct identity *self, const char *name) {
    FILE *file = open_database("/etc/group");
    struct group *group;
    while (file && self->count < GROUPS_MAX && (group = fgetgrent(file)))
        if (group->gr_gid != self->gid && is_member(group, name)) self->groups[self->count++] = group->gr_gid;
    if (file) fclose(file);
}

static int find_group(const char *name, gid_t *gid) {
    FILE *file;
    struct group *group = NULL;
    if (number(name, gid)) return 0;
    if (!(file = open_database("/etc/group"))) return EINVAL;
    while ((group = fgetgrent(file)))
        if (!strcmp(group->gr_name, name)) break;
    if (group) *gid = group->gr_gid;
    fclose(file);
    return group ? 0 : EINVAL;
}

static int identify(struct identity *self, const char *name, const char *group, char **home) {
    FILE *file = open_database("/etc/passwd");
    struct passwd *user = find_user(file, name);
    if (user) {
        self->uid = user->pw_uid;
        self->gid = user->pw_gid;
        *home = strdup(user->pw_dir);
        if (!group) add_groups_of(self, user->pw_name);
    } else if (!strcmp(name, "root")) {
        *home = "/root";
    } else if (!number(name, &self->uid)) {
        return EINVAL;
    }
    if (file) fclose(file);
    return group ? find_group(group, &self->gid) : 0;
}

static int set_identity(const struct identity *self) {
    if (setgroups(self->count, self->groups) < 0) return errno;
    if (setresgid(self->gid, self->gid, self->gid) < 0) return errno;
    if (setresuid(self->uid, self->uid, self->uid) < 0) return errno;
    return 0;
}

/* `terminal`, or -1, belongs to the user from then on. */
int become_user(const char *user, int terminal, char **home) {
    struct identity self = {0};
    char *name = strdup(user);
    if (!name) return ENOMEM;
    char *group = strchr(name, ':');
    if (group) *group++ = 0;
    int error = identify(&self, name, group, home);
    if (!*home) *home = "";
    if (!error && terminal >= 0 && fchown(terminal, self.uid, (gid_t)-1) < 0) error = errno;
    return error ? error : set_identity(&self);
}
