"""What an archive or a directory tree may hold: pure checks, made before anything is written.

A member's name stays below its directory; nothing is below or in place of a symbolic link; there are files,
directories and symbolic links, and nothing else. The rules are those of tarfile's `data` filter (PEP 706),
but refusing instead of repairing.
"""

from __future__ import annotations

import posixpath
import stat
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dsec.bus.errors import UnsafeArchive

Type = Literal["file", "directory", "symlink"]


@dataclass(frozen=True, slots=True)
class Member:
    """One entry; `name` is relative with slashes, `mode` the permission bits, `size` in bytes."""

    name: str
    type: Type
    mode: int
    size: int = 0
    target: str = ""


def refused(name: str, why: str) -> UnsafeArchive:
    """The error that names a member."""
    return UnsafeArchive(f"{name!r} {why}; nothing was written", field=name)


def safe_name(name: str) -> str:
    """`name` in its shortest form; the top itself is `""`. Raises UnsafeArchive."""
    if name.startswith("/"):
        raise refused(name, "is an absolute name")
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise refused(name, "leaves its directory")
    if "\0" in name:
        raise refused(name, "has a zero byte in its name")
    return "/".join(parts)


def of_tar(info: tarfile.TarInfo) -> Member:
    """The member that a tar header tells of. Raises UnsafeArchive for a hard link, a device, a pipe."""
    name, mode = safe_name(info.name), info.mode & 0o777
    if info.isreg():
        return Member(name, "file", mode, info.size)
    if info.isdir():
        return Member(name, "directory", mode)
    if info.issym():
        return Member(name, "symlink", 0o777, target=info.linkname)
    raise refused(info.name, "is a hard link" if info.islnk() else "is a device, a pipe or of unknown type")


def of_mode(name: str, mode: int, size: int, target: str | None) -> Member:
    """The member that a stat tells of; `mode` with the type bits. Raises UnsafeArchive."""
    kinds: dict[int, Type] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    kind = kinds.get(stat.S_IFMT(mode))
    if kind is None:
        raise refused(name, "is neither file, directory nor symbolic link")
    return Member(safe_name(name), kind, mode & 0o777, size if kind == "file" else 0, target or "")


def check(members: Iterable[Member], *, links_inside: bool = False) -> list[Member]:
    """The members, parents first. Raises UnsafeArchive for one that is below, or in place of, a symbolic
    link.

    `links_inside`: also for a symbolic link whose target is outside, as a link on the user's machine must
    not be.
    """
    listed = [member for member in members if member.name or member.type != "directory"]
    names = [member.name for member in listed]
    links = {member.name for member in listed if member.type == "symlink"}
    for member in listed:
        if not member.name:
            raise refused(".", "is not a directory")
        for above in _above(member.name):
            if above in links:
                raise refused(member.name, f"is below the symbolic link {above!r}")
        if links_inside and member.type == "symlink":
            _check_target(member)
    if len(names) != len(set(names)):
        _check_twice(names, links)
    return sorted(listed, key=lambda member: member.name.count("/"))


def _above(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _check_twice(names: list[str], links: set[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen and name in links:
            raise refused(name, "stands twice, once as a symbolic link")
        seen.add(name)


def _check_target(member: Member) -> None:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(member.name), member.target))
    if member.target.startswith("/") or target == ".." or target.startswith("../"):
        raise refused(member.name, f"is a symbolic link to {member.target!r}, outside of its directory")
