/* What travels between chronus and the host, one SEQPACKET datagram each. protocol.py is the same in Python and
 * tells what every body means. Integers are little-endian; strings are NUL-terminated. */
#pragma once

#include <stdint.h>

enum {
    VERSION = 2,
    REQUEST_MAX = 160 * 1024,
    REPLY_MAX = 64 * 1024,
    DATA_MAX = 60 * 1024,
    EXEC_ID_MAX = 63,
    DESCRIPTORS_MAX = 14,
    REPLY_DESCRIPTORS = 5,
    SESSION_BASE = 250, /* where a session's shell finds its three descriptors */
};

enum op {
    OP_PING = 1,
    OP_START,
    OP_EXECS,
    OP_ATTACH,
    OP_SIGNAL,
    OP_CLOSE_STDIN,
    OP_RELEASE,
    OP_EXITED,
    OP_STAT,
    OP_LIST,
    OP_READ,
    OP_WRITE,
    OP_MKDIR,
    OP_SYMLINK,
    OP_REMOVE,
};

enum flag { /* of requests and replies; a failed START carries its stage there instead */
    FLAG_STDIN = 1,
    FLAG_EXITED = 2,
    FLAG_MORE = 4,
    FLAG_TRUNCATE = 8,
    FLAG_RECURSIVE = 16,
    FLAG_SESSION = 32,
    FLAG_TERMINAL = 64,
};

enum stage { STAGE_FORK = 1, STAGE_CGROUP, STAGE_STDIO, STAGE_USER, STAGE_CWD, STAGE_EXEC };

struct head {
    uint8_t version, op;
    uint16_t flags;
    uint32_t id;
    uint32_t error; /* errno in replies, 0 in requests */
};

struct exit_report {
    int32_t code; /* -1 when it died of a signal */
    uint32_t signal;
    uint64_t cpu_us, max_rss; /* user and system time; bytes */
};

struct entry { /* then the name and the target of a symbolic link, or "" */
    uint64_t size;
    int64_t mtime_ns;
    uint32_t mode, uid, gid;
} __attribute__((packed));

_Static_assert(sizeof(struct head) == 12, "mirrored by protocol.py");
_Static_assert(sizeof(struct exit_report) == 24, "mirrored by protocol.py");
_Static_assert(sizeof(struct entry) == 28, "mirrored by protocol.py");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little-endian");
