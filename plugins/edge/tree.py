"""The directories of one watch, and what the kernel tells of them as events with paths. Blocking.

inotify watches directories, not trees: each directory that appears is watched and then listed, and what the
list shows is told as created, unless the kernel tells it, too. A directory that moves keeps its watch; paths
are put together from the names of the parents at the moment of an event.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from dsec.bus.errors import DsecError, InfraError, LimitError, NoSuchFile, TooLarge, Unsupported
from dsec.bus.file_events import FileChange, FileEvent
from dsec.plugins.edge import inotify
from dsec.plugins.edge.inotify import Mask, Raw

DIRECTORIES: Final = 4096
"""Of one watch."""
LISTED: Final = 4096
"""Entries of a new directory that are told one by one."""
SLICE: Final = 256
"""Directories, or events, of one step of a walk."""
PAIRED: Final = 0.02
"""Seconds in which the second half of a move has come; the kernel queues both at once."""
TOLD: Final = 65_536
"""Listed entries that are remembered until the kernel's queue was empty; past that some are told twice."""
ELSEWHERE: Final = frozenset({b"proc", b"dev", b"sys"})
"""Where other file systems are mounted inside, of which the root file system shows nothing."""
_VANISHED: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.ESTALE})


class Place(NamedTuple):
    """An entry: the number of its parent's watch, and its name."""

    parent: int
    name: bytes


class Left(NamedTuple):
    """The first half of a move."""

    place: Place
    directory: bool
    since: float
    read: int


TOP: Final = Place(0, b"")


class Tree:
    """Made by `open`. `ended`: what was watched is gone; `failed`: it cannot be watched any more."""

    def __init__(
        self, instance: int, root: int, base: bytes, path: str, *, recursive: bool, only: bytes
    ) -> None:
        """`base`: the watched directory relative to `root`, without links; held open it could not vanish."""
        self.instance = instance
        self._root = root
        self._base = base
        self._path = path
        self._recursive = recursive
        self._only = only
        self._skipped = frozenset() if base else ELSEWHERE
        self._places: dict[int, Place] = {}
        self._watches: dict[Place, int] = {}
        self._todo: deque[tuple[Place, bool]] = deque([(TOP, False)])
        self._told: set[Place] = set()
        self._left: dict[int, Left] = {}
        self._events: list[FileEvent] = []
        self._reads = 0
        self.ended = False
        self.failed: DsecError | None = None

    @classmethod
    def open(cls, rootfs: Path, uid: int, path: str, *, recursive: bool) -> Tree:
        """Watch `path` inside `rootfs`, counted as `uid`'s; a file by its name in its directory.

        Raises NoSuchFile, Unsupported, TooLarge, LimitError, InfraError.
        """
        with contextlib.ExitStack() as undo:
            try:
                root = os.open(rootfs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                undo.callback(os.close, root)
                base, only = _found(root, path)
                instance = inotify.instance(uid)
                undo.callback(os.close, instance)
            except OSError as error:
                raise _typed(error, path) from error
            shown = (posixpath.dirname(path) if only else path).rstrip("/")
            tree = cls(instance, root, base, shown, recursive=recursive and not only, only=only)
            tree._begin(path)
            undo.pop_all()
        return tree

    def _begin(self, path: str) -> None:
        while self._todo and not self.failed:
            self._walk()
        if self.failed:
            raise self.failed
        if not self._places:
            raise NoSuchFile(f"{path} vanished", field="path")

    def close(self) -> None:
        """Once, and nothing else afterwards."""
        os.close(self.instance)
        os.close(self._root)

    @property
    def over(self) -> bool:
        return self.ended or self.failed is not None

    @property
    def due(self) -> float | None:
        """Seconds until `step` has work even if nothing happens."""
        return 0.0 if self._todo else 2 * PAIRED if self._left else None

    def step(self) -> list[FileEvent]:
        """What has happened; a bounded part of the work."""
        self._events = []
        if not self._todo:
            raw = inotify.read(self.instance)
            self._reads += 1
            for one in raw:
                self._take(one)
            if not raw or len(self._told) > TOLD:
                self._told.clear()
            self._settle(drained=not raw)
        if self._todo and not self.over:
            self._walk()
        return self._events

    # --- what the kernel tells

    def _take(self, raw: Raw) -> None:
        if self.over:
            return
        if raw.mask & Mask.Q_OVERFLOW:
            self._tell("overflow", TOP, directory=True)
            self._todo.append((TOP, False))
        elif raw.watch not in self._places:
            return
        elif raw.name:
            self._changed(raw, Place(raw.watch, raw.name))
        elif self._places[raw.watch] == TOP:
            self._top_gone(raw.mask)
        elif raw.mask & Mask.IGNORED:
            self._forget(raw.watch)

    def _top_gone(self, mask: Mask) -> None:
        if mask & (Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.UNMOUNT | Mask.IGNORED):
            self._reads += 2
            self._settle()
            self._tell("deleted", TOP, directory=not self._only)
            self.ended = True

    def _changed(self, raw: Raw, place: Place) -> None:
        directory = bool(raw.mask & Mask.ISDIR)
        if raw.mask & Mask.MOVED_FROM:
            self._told.discard(place)
            self._left[raw.cookie] = Left(place, directory, time.monotonic(), self._reads)
        elif raw.mask & Mask.MOVED_TO:
            left = self._left.pop(raw.cookie, None)
            self._settle(at=place)
            self._arrived(left, place, directory=directory)
        elif raw.mask & Mask.CREATE:
            self._settle(at=place)
            self._created(place, directory=directory)
        elif raw.mask & Mask.DELETE:
            self._told.discard(place)
            self._tell("deleted", place, directory=directory)
        elif raw.mask & Mask.CLOSE_WRITE:
            self._tell("written", place)
        elif raw.mask & Mask.MODIFY:
            self._tell("modified", place)

    def _created(self, place: Place, *, directory: bool) -> None:
        if place in self._told:
            self._told.discard(place)
            return
        self._tell("created", place, directory=directory)
        if directory and self._recursive:
            self._todo.append((place, True))

    def _arrived(self, left: Left | None, place: Place, *, directory: bool) -> None:
        if left is None:
            self._created(place, directory=directory)
            return
        if not self._only or self._only in {left.place.name, place.name}:
            to = self._name(place)
            self._emit(FileEvent(kind="moved", path=self._name(left.place), to=to, directory=directory))
        watch = self._watches.pop(left.place, None)
        if watch is not None:
            self._put(watch, place)
        elif directory and self._recursive:
            self._todo.append((place, True))

    def _settle(self, *, drained: bool = False, at: Place | None = None) -> None:
        """What left, and arrived nowhere here, is gone; in a queue its other half came with the next read.

        What left from the place `at` is gone now: the kernel holds the directory until a move is told.
        """
        before, gone = time.monotonic() - PAIRED, set()
        for cookie, left in list(self._left.items()):
            late = left.since <= before if drained else left.read + 2 <= self._reads
            if left.place == at or late:
                del self._left[cookie]
                self._tell("deleted", left.place, directory=left.directory)
                gone.add(self._watches.get(left.place, 0))
        self._abandon(gone - {0})

    def _abandon(self, gone: set[int]) -> None:
        """Directories that went elsewhere, and all below them, are watched no more."""
        if not gone:
            return
        inner: defaultdict[int, list[int]] = defaultdict(list)
        for watch, place in self._places.items():
            inner[place.parent].append(watch)
        rest = list(gone)
        while rest:
            watch = rest.pop()
            rest += inner.pop(watch, [])
            inotify.drop(self.instance, watch)
            self._forget(watch)

    # --- the directories

    def _walk(self) -> None:
        """Watch and list some of those that wait for it."""
        for _ in range(SLICE):
            if not self._todo or self.over or len(self._events) >= SLICE:
                return
            place, tell = self._todo.popleft()
            try:
                self._enter(place, tell=tell)
            except OSError as error:
                if error.errno not in _VANISHED:
                    self.failed = _typed(error, self._name(place))

    def _enter(self, place: Place, *, tell: bool) -> None:
        if place != TOP and place.parent not in self._places:
            return
        inside = b"/".join(filter(None, (self._base, self._relative(place))))
        directory = inotify.open_beneath(self._root, inside)
        with _closing(directory):
            if place not in self._watches and len(self._places) >= DIRECTORIES:
                self.failed = TooLarge(f"more than {DIRECTORIES} directories in {self._path}", field="path")
                return
            watch = inotify.add(self.instance, directory)
            self._put(watch, place)
            if self._recursive:
                self._list(watch, directory, tell=tell)

    def _list(self, watch: int, directory: int, *, tell: bool) -> None:
        skipped = self._skipped if self._places[watch] == TOP else frozenset()
        with os.scandir(directory) as entries:
            for count, entry in enumerate(entries):
                place = Place(watch, os.fsencode(entry.name))
                inner = entry.is_dir(follow_symlinks=False)
                if tell and count == LISTED:
                    self._tell("overflow", TOP, directory=True)
                if tell and count < LISTED:
                    self._tell("created", place, directory=inner)
                    self._told.add(place)
                if inner and place.name not in skipped and len(self._todo) <= DIRECTORIES:
                    self._todo.append((place, tell))

    def _put(self, watch: int, place: Place) -> None:
        former = self._places.get(watch)
        if former is not None and self._watches.get(former) == watch:
            del self._watches[former]
        self._places[watch] = place
        self._watches[place] = watch

    def _forget(self, watch: int) -> None:
        place = self._places.pop(watch, None)
        if place is not None and self._watches.get(place) == watch:
            del self._watches[place]

    # --- names

    def _tell(self, kind: FileChange, place: Place, *, directory: bool = False) -> None:
        if self._only and place not in {TOP, Place(place.parent, self._only)}:
            return
        self._emit(FileEvent(kind=kind, path=self._name(place), directory=directory))

    def _emit(self, event: FileEvent) -> None:
        if not (self._events and self._events[-1] == event and event.kind in {"modified", "overflow"}):
            self._events.append(event)

    def _relative(self, place: Place) -> bytes:
        names: list[bytes] = []
        for _ in range(len(self._places) + 1):  # a tree that is moved about may look like a ring for a while
            if place == TOP:
                break
            names.append(place.name)
            place = self._places.get(place.parent, TOP)
        return b"/".join(reversed(names))

    def _name(self, place: Place) -> str:
        relative = self._relative(place).decode("utf-8", "backslashreplace")
        if self._only and place == TOP:
            relative = self._only.decode("utf-8", "backslashreplace")
        return f"{self._path}/{relative}" if relative else self._path or "/"


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


def _found(root: int, path: str) -> tuple[bytes, bytes]:
    """The directory to watch, relative to `root`, and for anything but a directory its name there.

    Raises OSError, Unsupported.
    """
    raw, only = os.fsencode(path), b""
    found = inotify.open_in_root(root, raw)
    with _closing(found):
        if stat.S_ISDIR(os.fstat(found).st_mode):
            return _beneath(root, found), only
    raw, only = posixpath.split(raw)
    found = inotify.open_in_root(root, raw)
    with _closing(found):
        return _beneath(root, found), only


def _beneath(root: int, found: int) -> bytes:
    """Where `found` lies in `root`; empty for the root itself. Raises Unsupported."""
    base, path = (Path(f"/proc/self/fd/{one}").readlink() for one in (root, found))
    inside = os.fsencode(path).removeprefix(os.fsencode(base)).strip(b"/")
    if inside.partition(b"/")[0] in ELSEWHERE:
        raise Unsupported(f"{os.fsdecode(inside)} is not on the sandbox's own file system", field="path")
    return inside


def _typed(error: OSError, path: str) -> DsecError:
    if error.errno in _VANISHED:
        return NoSuchFile(f"{path}: {error.strerror}", field="path")
    if error.errno in {errno.ENOSPC, errno.EMFILE}:
        return LimitError("the sandbox has used up its inotify instances or watches", field="path")
    if error.errno == errno.ENAMETOOLONG:
        return TooLarge(f"{path} lies too deep to be watched", field="path")
    return InfraError.during(f"watching {path}", error)
