"""What of a sandbox's writable layer goes into a packed layer.

The whole layer is kept as it is. With `paths` (for grading, where nothing in the sandbox is trusted) only
what lies under them, and of that only regular files, directories and deletions. **No symlink is stored**, not
even a relative one: whether it stays inside depends on what it is put on top of. A path behind a symlink, or
behind anything but directories, does not exist in the packed layer.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from dsec.bus.errors import SpecError
from dsec.plugins.images.entries import Entries


def stage(upper: Path, lowers: Sequence[Path], target: Path, paths: Sequence[str] | None) -> None:
    """Blocking: copy the writable layer `upper` (the sandbox is frozen) to the new directory `target`.

    `lowers` are the mount points of the layers below, top first; `paths` absolute paths inside, None for all.
    Raises SpecError for a bad path, DiskFull, LimitError, OSError.
    """
    wanted = None if paths is None else outermost(paths)
    target.mkdir()
    with contextlib.ExitStack() as held:
        roots = [_root(held, path) for path in (upper, target, *lowers)]
        entries = Entries(roots[0], roots[2:], roots[1], strict=wanted is not None)
        if wanted is None or wanted == [b""]:
            entries.copy(b"", merged=True)
        else:
            entries.parent(b"")
            for path in wanted:
                _keep(entries, path)
        entries.finish()


def _root(held: contextlib.ExitStack, path: Path) -> int:
    root = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    held.callback(os.close, root)
    return root


def outermost(paths: Sequence[str]) -> list[bytes]:
    """The paths relative to the root, sorted, without those that lie under another. Raises SpecError."""
    plain = sorted({_relative(path) for path in paths}, key=lambda path: path.split(b"/"))
    kept: list[bytes] = []
    for path in plain:
        if not kept or (kept[-1] and not path.startswith(kept[-1] + b"/")):
            kept.append(path)
    return kept


def _relative(path: str) -> bytes:
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if not path.startswith("/") or ".." in parts or "\0" in path:
        raise SpecError(f"{path!r} is not an absolute path without '..'", field="paths")
    return os.fsencode("/".join(parts))


def _keep(entries: Entries, path: bytes) -> None:
    """Copy what the sandbox shows at `path`, or tell that it shows nothing there any more."""
    parts = path.split(b"/")
    parents = [b"/".join(parts[:depth]) for depth in range(1, len(parts))]
    merged = True
    for parent in parents:
        found = entries.find(parent)
        if found is None or not stat.S_ISDIR(found.st_mode):
            if found is not None or not merged:
                _hide(entries, parents, path)
            return
        merged = merged and not entries.is_opaque(parent)
    if (found := entries.find(path)) is not None:
        _copy(entries, parents, path, merged=merged or not stat.S_ISDIR(found.st_mode))
    elif not merged:
        _hide(entries, parents, path)


def _copy(entries: Entries, parents: Sequence[bytes], path: bytes, *, merged: bool) -> None:
    """The parents lose their opaque marks, as what else is in them comes from below: `path` gets one then."""
    for parent in parents:
        entries.parent(parent)
    entries.copy(path, merged=merged)
    if not merged:
        entries.make_opaque(path)


def _hide(entries: Entries, parents: Sequence[bytes], path: bytes) -> None:
    """A directory above `path` was deleted or replaced, so nothing is there now."""
    if entries.is_below(path):
        for parent in parents:
            entries.parent(parent)
        entries.hide(path)
