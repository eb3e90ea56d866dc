"""What travels between the host and chronus, one SEQPACKET datagram each; `protocol.h` is the same in C.

Every datagram is a head and a body, integers little-endian, strings NUL-terminated. A reply has the op and
the id of its request and an errno (0: done); EXITED comes by itself, with id 0. The inside is the enemy:
whatever does not parse raises Malformed, and nothing here trusts a length.

| op | request body | reply body |
|---|---|---|
| PING | | |
| START | u32 argc, u32 envc, exec, user, cwd, argv…, `NAME=value`… | of a failure: flags are the Stage |
| EXECS | u32 index to go on at | exec…; MORE |
| ATTACH | exec | ExitReport when EXITED; SESSION, TERMINAL; descriptors: the host's, as kept |
| SIGNAL | u32 number, exec | |
| CLOSE_STDIN | exec | |
| RELEASE | exec | none is sent |
| EXITED | | ExitReport, exec |
| STAT | path | one Entry |
| LIST | path, after | Entry…, by name; MORE |
| READ | u64 offset, u32 length, path | the bytes |
| WRITE | u64 offset, u32 mode, path, the bytes; TRUNCATE | |
| MKDIR | u32 mode, path | |
| SYMLINK | path, target | |
| REMOVE | path; RECURSIVE | |

START passes: cgroup.procs (opened for writing), the child's stdout and stderr (write ends), the host's stdout
and stderr (read ends); then by its kind, and each time the child's end before the host's: with STDIN its
stdin; with SESSION the channel of commands (the child reads), that of statuses (the child writes) and the
file of the commands' input, which the child finds as 250, 251 and 252; then any further cgroup.procs to join.
ATTACH gives the host's ends back in this order. With TERMINAL the command runs on a terminal of the
sandbox's own, of u32 rows and u32 columns (after envc); ATTACH gives its master after stdout and stderr, to
which nobody writes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

VERSION: Final = 2
REQUEST_MAX: Final = 160 * 1024
REPLY_MAX: Final = 64 * 1024
DATA_MAX: Final = 60 * 1024
EXEC_ID_MAX: Final = 63
REPLY_DESCRIPTORS: Final = 5
SESSION_BASE: Final = 250

HEAD: Final = struct.Struct("<BBHII")  # version, op, flags, id, errno
EXIT: Final = struct.Struct("<iIQQ")  # exit code or -1, signal or 0, cpu us, max rss bytes
ENTRY: Final = struct.Struct("<QqIII")  # size, mtime ns, mode, uid, gid; then name, target


class Op(IntEnum):
    PING = 1
    START = 2
    EXECS = 3
    ATTACH = 4
    SIGNAL = 5
    CLOSE_STDIN = 6
    RELEASE = 7
    EXITED = 8
    STAT = 9
    LIST = 10
    READ = 11
    WRITE = 12
    MKDIR = 13
    SYMLINK = 14
    REMOVE = 15


class Flag(IntFlag):
    NONE = 0
    STDIN = 1
    EXITED = 2
    MORE = 4
    TRUNCATE = 8
    RECURSIVE = 16
    SESSION = 32
    TERMINAL = 64


class Stage(IntEnum):
    """How far a failed start came."""

    FORK = 1
    CGROUP = 2
    STDIO = 3
    USER = 4
    CWD = 5
    EXEC = 6


class Malformed(Exception):
    """A datagram that chronus would not send."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A datagram from the inside, its head checked; `descriptors` are owned by whoever gets it."""

    op: Op
    flags: int
    id: int
    error: int
    body: bytes
    descriptors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a command's leader: `code` or `signal`; user and system time in us, peak memory in bytes."""

    code: int | None
    signal: int | None
    cpu_us: int
    max_rss: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a file system; `target` of a symbolic link."""

    name: str
    size: int
    mtime_ns: int
    mode: int
    uid: int
    gid: int
    target: str


def text(value: str) -> bytes:
    """A string of a body. Raises ValueError when it cannot be one."""
    encoded = value.encode("utf-8", "surrogateescape")
    if b"\0" in encoded:
        raise ValueError(f"{value!r} has a NUL in it")
    return encoded + b"\0"


def pack(op: Op, request: int, body: bytes = b"", flags: int = 0) -> bytes:
    """A request; `request` is its id, 0 for one without a reply."""
    return HEAD.pack(VERSION, op, flags, request, 0) + body


def parse(datagram: bytes, descriptors: tuple[int, ...] = ()) -> Reply:
    """The reply in `datagram`. Raises Malformed."""
    if not HEAD.size <= len(datagram) <= REPLY_MAX:
        raise Malformed(f"a datagram of {len(datagram)} bytes")
    version, op, flags, request, error = HEAD.unpack_from(datagram)
    if version != VERSION or op not in _OPS:
        raise Malformed(f"version {version}, op {op}")
    if descriptors and (op != Op.ATTACH or error):
        raise Malformed(f"descriptors that nobody asked for, in a reply to {Op(op).name}")
    return Reply(Op(op), flags, request, error, datagram[HEAD.size :], descriptors)


_OPS: Final = frozenset(Op)


def parse_exit(body: bytes) -> tuple[Exit, str]:
    """An exit report and the exec it is of, or "". Raises Malformed."""
    if len(body) < EXIT.size:
        raise Malformed("a short exit report")
    code, signal, cpu_us, max_rss = EXIT.unpack_from(body)
    if not (0 <= code <= 255 and signal == 0) and not (code == -1 and 1 <= signal <= 64):
        raise Malformed(f"exit code {code}, signal {signal}")
    names = strings(body[EXIT.size :])
    if len(names) > 1:
        raise Malformed("an exit report of several execs")
    return Exit(code if signal == 0 else None, signal or None, cpu_us, max_rss), names[0] if names else ""


def strings(body: bytes) -> list[str]:
    """All strings of a body. Raises Malformed."""
    if not body:
        return []
    if body[-1] != 0:
        raise Malformed("a string without an end")
    return [_decode(part) for part in body[:-1].split(b"\0")]


def entries(body: bytes) -> Iterator[Entry]:
    """The entries of a body. Raises Malformed."""
    at = 0
    while at < len(body):
        if len(body) - at < ENTRY.size:
            raise Malformed("a short entry")
        size, mtime_ns, mode, uid, gid = ENTRY.unpack_from(body, at)
        name, at = _string(body, at + ENTRY.size)
        target, at = _string(body, at)
        yield Entry(name, size, mtime_ns, mode, uid, gid, target)


def _string(body: bytes, at: int) -> tuple[str, int]:
    end = body.find(b"\0", at)
    if end < 0:
        raise Malformed("a string without an end")
    return _decode(body[at:end]), end + 1


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
