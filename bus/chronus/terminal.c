/* A terminal inside: a pair of the sandbox's own devpts, so that what runs on it finds its name in /dev/pts. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "chronus.h"

#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

/* The slave by the master's own word, not by a name that the inside could have put something else under. */
static int open_pair(int *master, int *slave) {
    int unlocked = 0, number;
    *master = open_outside_proc("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC, 0);
    if (*master < 0 || ioctl(*master, TIOCGPTN, &number) < 0 || ioctl(*master, TIOCSPTLCK, &unlocked) < 0)
        return errno;
    *slave = ioctl(*master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    return *slave < 0 ? errno : 0;
}

int terminal_open(uint32_t rows, uint32_t columns, int *master, int *slave) {
    struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns};
    *master = *slave = -1;
    int error = open_pair(master, slave);
    if (!error && ioctl(*master, TIOCSWINSZ, &size) < 0) error = errno;
    if (!error) return 0;
    if (*master >= 0) close(*master);
    if (*slave >= 0) close(*slave);
    return error;
}
