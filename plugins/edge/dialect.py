"""What a session's shell is told, in text: its opening, and a line for each command.

The shell reads its script from a pipe, the channel of commands, and that reader is the only loop there is:
nothing of the user's stands around it that `break`, `return`, `set -e` or an open quote could get hold of. A
command is an argument of `eval`; the line after it writes the command's status into a second pipe. So the
status comes after all that the command wrote, in no stream of its own.

bash keeps the pipe it reads from to itself, and hides the other two descriptors from the command: they point
to /dev/null while it runs. They are moved to numbers past 250 meanwhile, which no script uses.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from dsec.bus.chronus.protocol import SESSION_BASE
from dsec.bus.errors import SpecError, TooLarge

COMMANDS, STATUSES, INPUT = range(SESSION_BASE, SESSION_BASE + 3)
HIDING: Final = SESSION_BASE + 16
"""Descriptors that a shell must be able to have so that it can hide the two."""
LINE_BYTES: Final = 1 << 20
"""What a pipe takes at once, so that a line is written whole or not at all."""
STATUS_BYTES: Final = 4096
"""What more there is in the channel of statuses cannot be one."""
_STATUS: Final = re.compile(rb"E (e-[a-z0-9]+) (\d{1,3})\n")


class Dialect(Enum):
    """How a shell is spoken to."""

    BASH = "bash"
    BASH_CROWDED = "bash with few descriptors"
    SH = "sh"

    @classmethod
    def of(cls, shell: str, nofile: int | None) -> Dialect:
        """By the shell's name; `nofile` is the limit of descriptors in the sandbox."""
        if shell.rpartition("/")[2] != "bash":
            return cls.SH
        return cls.BASH_CROWDED if nofile is not None and nofile < HIDING else cls.BASH

    @property
    def reads_on(self) -> bool:
        """Whether it takes from the channel no more than it runs."""
        return self is not Dialect.SH


def argv(shell: str) -> tuple[str, ...]:
    """How the shell is started."""
    quiet = ("--noprofile", "--norc") if Dialect.of(shell, None) is Dialect.BASH else ()
    return (shell, *quiet, f"/dev/fd/{COMMANDS}")


def opening(dialect: Dialect) -> bytes:
    """The first line: bash has its own copy of the channel then, and is called so."""
    if dialect is Dialect.SH:
        return b""
    return b"exec %d</dev/null; BASH_ARGV0=bash\n" % COMMANDS


def line(dialect: Dialect, text: str, token: str, *, stdin: bool) -> bytes:
    """What runs `text` and tells its status under `token`. Raises SpecError for a NUL, TooLarge."""
    if "\0" in text:
        raise SpecError("shell code with a NUL cannot be run", field="argv")
    quoted = b"'" + text.encode("utf-8", "surrogateescape").replace(b"'", b"'\\''") + b"'"
    run, tell = _BASH if dialect.reads_on else _SH
    redirections = [b"</proc/self/fd/%d" % INPUT] if stdin else []
    if dialect is Dialect.BASH:
        redirections += [b"%d>&%d" % (STATUSES, COMMANDS), b"%d<&%d" % (INPUT, COMMANDS)]
    whole = b" ".join((run, quoted, *redirections)) + b"\n\n" + tell.replace(b"TOKEN", token.encode()) + b"\n"
    if len(whole) > LINE_BYTES:
        raise TooLarge(f"shell code of {len(quoted)} bytes: put it into a file", field="argv")
    return whole


# `!` keeps a trap on ERR from seeing the same failure twice; PIPESTATUS has what it turns round. The braces
# keep what `set -x` tells of the second line out of the command's stderr, a backslash is no alias, and the
# empty line brings the parser back to its senses after a syntax error.
_BASH: Final = (
    b"! \\builtin eval",
    b'{ \\builtin printf "E TOKEN %%d\\n" "${PIPESTATUS[0]}"; } 2>&%d >&%d' % (COMMANDS, STATUSES),
)
_SH: Final = (
    b"\\command eval",
    b'{ \\command printf "E TOKEN %%d\\n" "$?"; } 2>/dev/null >/proc/self/fd/%d' % STATUSES,
)


def status(raw: bytes) -> tuple[str, int] | None:
    """The token and the exit code of a status; None when it is none, so that the session cannot go on."""
    found = _STATUS.fullmatch(raw)
    if found is None or int(found[2]) > 255:
        return None
    return found[1].decode(), int(found[2])
