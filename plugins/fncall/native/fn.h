/* What isolates calls: one static program that plays three parts.

   enter  started by the node as root: takes a user namespace and a root file system, and becomes the stem
   stem   PID 1 of a worker: makes boxes, starts the zygote, runs no code of any project
   box    PID 1 of one call: namespaces, mounts and limits of its own; runs one program, or is joined by a
          child of the zygote; everything inside dies with it

   Parts talk over SEQPACKET sockets: a `struct order`, NUL-ended strings, descriptors (unix(7), SCM_RIGHTS). */
#ifndef FN_H
#define FN_H

#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

enum { CONTROL = 3, USER_NAMESPACE = 4, PROGRAM = 5 }; /* descriptors that the node hands over */
enum { USER = 1000 };                                  /* whom code of a call runs as */
enum { ORDER_BYTES = 190 * 1024, FDS = 16 };           /* below the kernel's default socket buffer */

enum op { ZYGOTE = 1, BOX, PUT, RUN, GET };

/* To the stem:
     ZYGOTE  strings: arguments; descriptors: its socket, its output
     BOX     value: bytes of /tmp, argc: inodes of it; descriptors: files that "0" is written to (cgroups)
   To a box:
     PUT     string: name below the working directory; argc: mode; descriptor: content
     RUN     argc, envc: how many strings; value: CPU seconds or 0, nofile; descriptors: 0, 1, 2
     GET     string: name below the working directory */
struct order {
    uint32_t op, argc, envc, nofile;
    uint64_t value;
};

/* Every answer. `error` is an errno; `status` as of wait(2).
     ZYGOTE: descriptor: pidfd.  BOX: descriptors: pidfd, socket.  GET: value: size; descriptor: the file
     a box that is ready, unasked: descriptors of its namespaces, as named by NAMESPACES */
struct answer {
    uint32_t op, error, status, unused;
    uint64_t value;
    char text[64];
};

struct received {
    struct order order;
    char *strings[1024];
    int count, fds[FDS], nfds;
};

int receive(int socket, struct received *into); /* 1, 0 at the end, -1 when it makes no sense */
int answer(int socket, const struct answer *what, const int *fds, int n);
void close_all(const int *fds, int n);

void enter(const char *root, char **more); /* files of cgroups to join, devices */
void stem(void);
void box(int socket, const struct received *asked);
int put(int directory, const struct received *asked);
int get(int directory, const char *name, uint64_t *size);
void program(const struct received *asked, uint32_t *error);

int filter(int joins_namespaces); /* 0, or -1 with errno; calls are listed in calls.txt */

#endif
