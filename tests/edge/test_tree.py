"""Events of a tree lead from what was there to what is there, and no link leads out of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dsec.bus.errors import LimitError, NoSuchFile, TooLarge, Unsupported
from dsec.bus.file_events import FileEvent
from dsec.plugins.edge import inotify, tree
from dsec.plugins.edge.file_watch import Watch
from dsec.plugins.edge.tree import Tree

pytestmark = pytest.mark.node
UID = 1_234_567_890
"""Nobody's on this machine."""
NAMES = st.sampled_from("abc")
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(["mkdir", "write", "remove", "look"]), PATHS, PATHS),
    st.tuples(st.just("move"), PATHS, PATHS),
)


@contextmanager
def opened(root: Path, path: str = "/", *, recursive: bool = True) -> Iterator[Tree]:
    watched = Tree.open(root, UID, path, recursive=recursive)
    try:
        yield watched
    finally:
        watched.close()


def drained(watched: Tree) -> list[FileEvent]:
    """All events, also of moves whose other half does not come."""
    events: list[FileEvent] = []
    until = time.monotonic() + 2
    while time.monotonic() < until:
        found = watched.step()
        events += found
        if watched.over or (not found and watched.due is None):
            return events
        if not found and watched.due:
            time.sleep(tree.PAIRED)
    raise AssertionError("a tree never settles")


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def do(root: Path, operation: str, path: Path, other: Path) -> None:
    try:
        if operation == "mkdir":
            path.mkdir(parents=True, exist_ok=True)
        elif operation == "write":
            path.write_text("x")
        elif operation == "move":
            path.rename(other)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError:
        assert root.is_dir()


def apply(there: set[str], event: FileEvent) -> None:
    if event.kind == "created":
        there.add(event.path)
    elif event.kind == "deleted":
        there -= {one for one in there if one == event.path or one.startswith(f"{event.path}/")}
    elif event.kind == "moved":
        assert event.to is not None
        moved = {one for one in there if one == event.path or one.startswith(f"{event.path}/")}
        there -= moved
        there |= {event.to + one.removeprefix(event.path) for one in moved} | {event.to}


@example([("mkdir", "a", "a"), ("mkdir", "b", "a"), ("move", "a", "b/a"), ("mkdir", "a", "a")], [])
@given(st.lists(OPERATIONS, max_size=12), st.lists(OPERATIONS, max_size=4))
@settings(max_examples=60, deadline=None)
def test_what_was_there_and_the_events_make_what_is_there(
    operations: list[tuple[str, str, str]], before: list[tuple[str, str, str]]
) -> None:
    with tempfile.TemporaryDirectory() as home:
        root = Path(home)
        for operation, path, other in before:
            do(root, operation, root / path, root / other)
        there = {f"/{path.relative_to(root)}" for path in root.rglob("*")}
        with opened(root) as watched:
            events: list[FileEvent] = []
            for operation, path, other in operations:
                if operation == "look":
                    events += drained(watched)
                else:
                    do(root, operation, root / path, root / other)
            for event in events + drained(watched):
                apply(there, event)
            assert there == {f"/{path.relative_to(root)}" for path in root.rglob("*")}
            assert watched.failed is None


def test_links_are_followed_as_the_inside_would_and_never_out(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "real/sub").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (root / "up").symlink_to("../secret")
    (root / "absolute").symlink_to(tmp_path / "secret")
    (root / "name").symlink_to("/real")
    (root / "real/out").symlink_to(tmp_path / "secret")
    for path in ("/up/", "/absolute/", "/../secret"):
        with pytest.raises(NoSuchFile), opened(root, path):
            pass
    with opened(root, "/name") as watched:
        (tmp_path / "secret/f").write_text("x")
        (root / "real/sub/f").write_text("x")
        assert {event.path for event in drained(watched)} == {"/name/sub/f"}


def test_a_directory_that_became_a_link_before_it_was_opened_is_not_entered(tmp_path: Path) -> None:
    root, secret = tmp_path / "root", tmp_path / "secret"
    for one in (root, secret):
        one.mkdir()
    with opened(root) as watched:
        (root / "d").mkdir()
        (root / "d").rmdir()
        (root / "d").symlink_to(secret)
        (secret / "f").write_text("x")
        assert {event.path for event in drained(watched)} == {"/d"}


def test_a_tree_that_is_or_grows_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "DIRECTORIES", 5)
    for number in range(3):
        (tmp_path / str(number)).mkdir()
    with opened(tmp_path) as watched:
        for number in range(3, 6):
            (tmp_path / str(number)).mkdir()
        drained(watched)
        assert isinstance(watched.failed, TooLarge)
    with pytest.raises(TooLarge), opened(tmp_path):
        pass


def test_what_is_mounted_inside_is_refused_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "dev/shm").mkdir(parents=True)
    (tmp_path / "link").symlink_to("/dev")
    for path in ("/dev", "/dev/shm", "/link"):
        with pytest.raises(Unsupported), opened(tmp_path, path):
            pass
    with opened(tmp_path) as watched:
        (tmp_path / "dev/f").write_text("x")
        assert drained(watched) == []


def test_an_overflow_of_the_kernels_queue_is_told_and_the_tree_is_watched_on(tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    with opened(tmp_path) as watched:
        one, two = tmp_path / "one", tmp_path / "two"
        one.write_text("")
        for _ in range(limit // 2 + 1):
            one.rename(two)
            two.rename(one)
        (tmp_path / "late").mkdir()
        assert "overflow" in {event.kind for event in drained(watched)}
        (tmp_path / "late/f").write_text("x")
        assert "/late/f" in {event.path for event in drained(watched)}


def test_what_leaves_a_busy_tree_is_told_and_forgotten_though_the_queue_is_never_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, away = tmp_path / "root", tmp_path / "away"
    for one in (root / "d/sub", away):
        one.mkdir(parents=True)
    with opened(root) as watched:
        (root / "d").rename(away / "d")
        told: list[FileEvent] = []
        for number in range(4):
            (root / f"f{number}").write_text("x")
            told += watched.step()
        assert ("deleted", "/d") in {(event.kind, event.path) for event in told}
        (away / "d/sub/f").write_text("x")
        assert "/d/sub/f" not in {event.path for event in drained(watched)}


def test_the_budget_is_that_of_the_sandbox_alone_and_no_descriptor_is_left(tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    before = descriptors()
    held: list[int] = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            held.extend(inotify.instance(UID) for _ in range(limit + 1))
        with pytest.raises(LimitError), opened(tmp_path):
            pass
        os.close(inotify.instance(UID + 1))
    finally:
        for one in held:
            os.close(one)
    assert descriptors() == before
    assert os.geteuid() == 0


async def test_the_step_that_ends_a_tree_is_told_before_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w").mkdir()
    with opened(tmp_path, "/w") as watched:
        step = watched.step

        def lingering() -> list[FileEvent]:
            told = step()
            time.sleep(0.2 if watched.over else 0)
            return told

        monkeypatch.setattr(watched, "step", lingering)
        watch = Watch(watched)
        running = asyncio.create_task(watch.run(asyncio.Semaphore(1)))
        (tmp_path / "w").rmdir()
        while not watched.over:  # noqa: ASYNC110 - it tells its state only
            await asyncio.sleep(0.005)
        told = await watch.poll(0, time.monotonic() + 5)
        assert [(event.kind, event.path) for event in told.events] == [("deleted", "/w")]
        assert (await watch.poll(1, time.monotonic() + 5)).ended
        await running
