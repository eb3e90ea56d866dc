"""Trees that sandboxes left, removed whatever their depth, modes and names; and files forced to disk."""

from __future__ import annotations

import itertools
import os
import secrets
from pathlib import Path
from typing import Final

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEPTH: Final = 3
_AT_ONCE: Final = 4096


def remove(path: Path) -> None:
    """Delete a directory tree; silent when there is none, and repeatable after an error (OSError).

    What lies deeper than three directories is moved to the top and deleted there, and names are read some at
    a time: a tree as deep or as wide as an agent cares to make it costs neither stack nor descriptors nor
    path length nor memory. No symlink is ever followed.
    """
    try:
        top = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return
    try:
        _clear(top, top, _DEPTH)
    finally:
        os.close(top)
    path.rmdir()


def _clear(directory: int, top: int, depth: int) -> None:
    """Empty `directory`; what is deeper than `depth` is moved to `top`, which is emptied last."""
    while entries := _some(directory):
        for name, is_directory in entries:
            if not is_directory:
                os.unlink(name, dir_fd=directory)
            elif depth:
                _clear_below(directory, name, top, depth - 1)
            else:
                os.rename(name, f".gone-{secrets.token_hex(8)}", src_dir_fd=directory, dst_dir_fd=top)


def _some(directory: int) -> list[tuple[bytes, bool]]:
    """The first names of a directory, and which of them are directories."""
    with os.scandir(directory) as found:
        first = itertools.islice(found, _AT_ONCE)
        return [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in first]


def _clear_below(parent: int, name: bytes, top: int, depth: int) -> None:
    directory = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        _clear(directory, top, depth)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=parent)
