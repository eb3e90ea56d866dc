"""Trees that sandboxes left, removed whatever their depth, modes and names; and files forced to disk."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(path: Path) -> None:
    """Delete a directory tree; silent when there is none, and repeatable after an error (OSError).

    Every directory is first moved to the top and emptied there: a tree as deep as an agent cares to make it
    costs neither stack nor descriptors nor path length, and no symlink is ever followed.
    """
    try:
        top = os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return
    try:
        names = (f".gone-{secrets.token_hex(8)}" for _ in iter(int, 1))
        while _sweep(top, names):
            pass
    finally:
        os.close(top)
    path.rmdir()


def _sweep(top: int, names: Iterator[str]) -> bool:
    """Delete what lies in `top`, moving the directories one level below up; False when nothing was there."""
    with os.scandir(top) as found:
        entries = [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_directory in entries:
        if is_directory:
            _hoist(top, name, names)
            os.rmdir(name, dir_fd=top)
        else:
            os.unlink(name, dir_fd=top)
    return bool(entries)


def _hoist(top: int, name: bytes, names: Iterator[str]) -> None:
    """Empty directory `name` of `top`: files go, directories move to `top`."""
    directory = os.open(name, _DIRECTORY, dir_fd=top)
    try:
        with os.scandir(directory) as found:
            entries = [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in found]
        for entry, is_directory in entries:
            if is_directory:
                os.rename(entry, next(names), src_dir_fd=directory, dst_dir_fd=top)
            else:
                os.unlink(entry, dir_fd=directory)
    finally:
        os.close(directory)


def sync(path: Path) -> None:
    """Force a file's bytes, or a directory's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
