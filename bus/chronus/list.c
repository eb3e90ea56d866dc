/* A directory by name, a page at a time: one scan keeps the PAGE smallest names past the last one told, so that a
 * huge directory costs no memory. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "chronus.h"

enum { PAGE = 256 };

struct page {
    char names[PAGE][NAME_MAX + 1]; /* slots; `order` sorts them */
    uint16_t order[PAGE];
    size_t count;
    int more; /* names past the page were seen */
};

static size_t position(const struct page *page, const char *name) {
    size_t low = 0, high = page->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(page->names[page->order[middle]], name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void insert(struct page *page, const char *name) {
    size_t at = position(page, name);
    if (page->count == PAGE) {
        page->more = 1;
        if (at == PAGE) return;
    }
    size_t slot = page->count == PAGE ? page->order[PAGE - 1] : page->count++;
    memmove(page->order + at + 1, page->order + at, (page->count - 1 - at) * sizeof *page->order);
    page->order[at] = (uint16_t)slot;
    snprintf(page->names[slot], sizeof page->names[slot], "%s", name);
}

static void scan(DIR *directory, const char *after, struct page *page) {
    struct dirent *entry;
    page->count = 0;
    page->more = 0;
    while ((entry = readdir(directory))) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") && strcmp(name, "..") && strcmp(name, after) > 0) insert(page, name);
    }
}

static void tell(struct reply *reply, int directory, const struct page *page) {
    if (page->more) reply->head.flags |= FLAG_MORE;
    for (size_t i = 0; i < page->count; i++) {
        int error = describe(reply, directory, page->names[page->order[i]]);
        if (error == ENOBUFS) { /* the rest comes with the next page; other errors: it is gone meanwhile */
            reply->head.flags |= FLAG_MORE;
            return;
        }
    }
}

int file_list(struct request *request, struct reply *reply) {
    static struct page page;
    char *path = take_string(request), *after = take_string(request);
    if (request->bad) return EPROTO;
    int fd = open_outside_proc(path, O_RDONLY | O_DIRECTORY, 0);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (!directory) {
        int error = errno;
        if (fd >= 0) close(fd);
        return error;
    }
    scan(directory, after, &page);
    tell(reply, fd, &page);
    closedir(directory);
    return 0;
}
