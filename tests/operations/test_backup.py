"""Back-up and restore: round trips while work goes on, damage, kills, full disks."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from dsec.bus import ids, registry
from dsec.bus.backup.images import catalog
from dsec.bus.backup.making import STREAMS, backup
from dsec.bus.backup.manifest import Manifest, read
from dsec.bus.backup.restoring import STAGE, restore
from dsec.bus.errors import AlreadyRunning, Conflict, DiskFull, InfraError, SpecError
from dsec.bus.home import Home
from dsec.bus.messages import Audit
from dsec.bus.nats.directget import DirectGet, Stored, patiently
from dsec.bus.nats.wire import Wire
from dsec.plugins.images.store import ErofsImages
from dsec.sdk import Client
from tests.cluster.conftest import site_in
from tests.wire.support import Stack, running_broker_with_iam, until

pytestmark = pytest.mark.node  # layers are made by mkfs.erofs
NODE = "n-a"


@contextlib.asynccontextmanager
async def installation(path: Path) -> AsyncIterator[Stack]:
    async with running_broker_with_iam(path) as stack, stack.wire("core") as core:
        await registry.ensure(core.jetstream, exec_bytes=64 << 20)
        yield stack


async def all_of(stack: Stack, stream: str, subject: str) -> list[Stored]:
    async with stack.wire("operator") as wire, DirectGet.running(wire) as reader:
        found: list[Stored] = []
        while True:
            at = found[-1].sequence + 1 if found else 1
            batch = await reader.batch(stream, subject, at, count=1000, max_bytes=4 << 20)
            found += batch.messages
            if not batch.pending:
                return found


async def note(wire: Wire, number: int) -> None:
    entry = Audit(
        time=number, op="sandbox.create", principal="u-x", subject="s", target=f"t-{number}", outcome="ok"
    )
    body = entry.model_dump_json().encode()
    answer = orjson.loads((await wire.request("audit.core.create.p-x", body, timeout=5)).data)
    assert "error" not in answer


async def fill(stack: Stack, count: int) -> None:
    sandbox = ids.sandbox_on(NODE)
    async with stack.wire("core") as core, stack.wire(NODE) as node:
        for number in range(count):
            await note(core, number)
        for verb in ("created", "running"):
            await node.request(f"event.{verb}.p-x.{NODE}.{sandbox}", b"{}", timeout=5)
        await node.request(f"$KV.registry.p-x.{NODE}.{sandbox}", b'{"a":1}', timeout=5)
    async with Client(stack.url, stack.credentials("u-admin")) as admin:
        await admin.projects.create("p-kept", quota={"sandboxes": 3})
        made = await admin.principals.create("u-kept", project="p-kept")
        made.save(stack.home.path.parent / "u-kept.json")


async def layers(home: Home, tree: Path) -> None:
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "file").write_bytes(os.urandom(300_000))
    async with ErofsImages(home.images(NODE)) as images:
        await images.import_tree("one", tree, "base")
        await images.import_tree("also-one", tree, "base")
        (tree / "more").write_text("more")
        await images.import_tree("two", tree, "toolkit")


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest, list[Stored]]:
    """A back-up with everything in it, and the audit as it was."""
    path = tmp_path_factory.mktemp("kept")
    async with installation(path / "home") as stack:
        await fill(stack, 50)
        await layers(stack.home, path / "tree")
        async with stack.wire("operator") as operator:
            manifest = await backup(operator, stack.home, path / "backup")
        audit = await all_of(stack, "AUDIT", "audit.core.>")
    return path / "backup", manifest, audit


async def test_what_was_backed_up_is_there_after_a_restore(
    kept: tuple[Path, Manifest, list[Stored]], tmp_path: Path
) -> None:
    directory, manifest, audit = kept
    home = Home(tmp_path / "new")
    assert (await restore(home, directory)).manifest == manifest
    assert [(layer.name, layer.kind) for layer in manifest.images[NODE]] == [
        *(("also-one", "base"), ("one", "base"), ("two", "toolkit"))
    ]
    async with catalog(home, NODE) as images:
        assert await images.layers() == manifest.images[NODE]
    async with installation(home.path) as stack:
        assert await all_of(stack, "AUDIT", "audit.core.>") == audit
        assert len(await all_of(stack, "EVENT", "event.>")) == 2
        assert len(await all_of(stack, "KV_registry", "$KV.registry.>")) == 1
        async with (
            Client(stack.url, directory.parent / "u-kept.json"),
            Client(stack.url, stack.credentials("u-admin")) as admin,
            stack.wire("core") as core,
        ):
            quotas = {one.project: one.quota.sandboxes async for one in admin.projects.list()}
            assert quotas["p-kept"] == 3
            await note(core, 1000)
            assert (await all_of(stack, "AUDIT", "audit.core.>"))[-1].sequence > audit[-1].sequence


def test_a_back_up_has_no_secret_and_can_be_checked_by_hand(
    kept: tuple[Path, Manifest, list[Stored]],
) -> None:
    directory, manifest, _ = kept
    assert {one.name for one in manifest.streams} == set(STREAMS)
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=directory, check=True)
    seed = json.loads((directory.parent / "u-kept.json").read_text())["seed"].encode()
    for file in directory.rglob("*"):
        assert file.is_dir() or seed not in file.read_bytes()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert len(list((directory / "layers").iterdir())) == 2


async def test_a_restore_into_what_is_in_use_or_has_streams_is_refused(
    kept: tuple[Path, Manifest, list[Stored]], tmp_path: Path
) -> None:
    directory, _, _ = kept
    home = Home(tmp_path / "home")
    with home.held("control"), pytest.raises(AlreadyRunning):
        await restore(home, directory)
    assert not (await restore(home, directory)).already
    before = _content(home.path)
    assert (await restore(home, directory)).already
    assert _content(home.path) == before
    other = Home(tmp_path / "other")
    async with installation(other.path):
        pass
    before = _content(other.path)
    with pytest.raises(Conflict, match="streams of its own"):
        await restore(other, directory)
    assert _content(other.path) == before
    third = Home(tmp_path / "third")
    tree = tmp_path / "tree"
    tree.mkdir()
    async with ErofsImages(third.images(NODE)) as images:
        await images.import_tree("one", tree, "base")
    with pytest.raises(Conflict, match="another layer 'one'"):
        await restore(third, directory)
    assert not third.broker.exists()


@pytest.mark.slow
async def test_a_cluster_is_backed_up_and_restored_onto_one_server(tmp_path: Path) -> None:
    """Streams of three replicas, read through any server, become streams of one."""
    async with site_in(tmp_path / "site") as site, site.wire("core") as core:
        await patiently(lambda: registry.ensure(core.jetstream, 64 << 20, replicas=site.told.replicas))
        for number in range(20):
            await note(core, number)
        async with site.wire("operator") as operator:
            manifest = await backup(operator, site.home, tmp_path / "backup")
    assert {one.config["num_replicas"] for one in manifest.streams} == {3}
    await restore(Home(tmp_path / "new"), tmp_path / "backup")
    async with installation(tmp_path / "new") as stack:
        assert len(await all_of(stack, "AUDIT", "audit.core.>")) == 20


def _content(directory: Path) -> dict[Path, bytes]:
    """Files, but for those that are only held as locks."""
    files = (path for path in directory.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {path: path.read_bytes() for path in files}


def _flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.chmod(0o600)
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: _flip(d / "manifest.json", 40),
        lambda d: _flip(d / "SHA256SUMS", 3),
        lambda d: _flip(d / "streams/AUDIT/stream.tar.s2", 200),
        lambda d: _flip(next((d / "layers").iterdir()), 5000),
        lambda d: next((d / "layers").iterdir()).unlink(),
        lambda d: (d / "manifest.json").unlink(),
        lambda d: (d / "SHA256SUMS").unlink(),
        lambda d: (d / "streams/AUDIT/more").write_text("x"),
        shutil.rmtree,
    ],
)
async def test_a_damaged_back_up_is_refused_before_anything_is_changed(
    kept: tuple[Path, Manifest, list[Stored]], tmp_path: Path, damage: object
) -> None:
    directory = tmp_path / "damaged"
    shutil.copytree(kept[0], directory)
    assert callable(damage)
    damage(directory)
    home = Home(tmp_path / "home")
    with pytest.raises(SpecError, match="not a whole back-up"):
        await restore(home, directory)
    assert not home.path.exists()


async def test_a_back_up_while_entries_are_written_is_of_one_moment(tmp_path: Path) -> None:
    async with installation(tmp_path / "home") as stack, stack.wire("core") as core:
        stop = asyncio.Event()
        written = 0

        async def write() -> None:
            nonlocal written
            while not stop.is_set():
                await note(core, written)
                written += 1

        task = asyncio.create_task(write())
        await until(lambda: written >= 200, within=20)
        async with stack.wire("operator") as operator:
            before = written
            manifest = await backup(operator, stack.home, tmp_path / "backup")
        stop.set()
        await task
    await restore(Home(tmp_path / "new"), tmp_path / "backup")
    async with installation(tmp_path / "new") as stack:
        entries = await all_of(stack, "AUDIT", "audit.core.>")
    numbers = [Audit.model_validate_json(entry.data).time for entry in entries]
    assert numbers == list(range(len(numbers)))
    assert before <= len(numbers) <= written
    assert {one.name: one.state["messages"] for one in manifest.streams}["AUDIT"] <= len(numbers)


@pytest.mark.kill
async def test_a_back_up_and_a_restore_that_were_killed_leave_nothing_that_looks_whole(
    tmp_path: Path,
) -> None:
    """kill -9 at several moments; then both are run again and done."""
    async with installation(tmp_path / "home") as stack:
        await fill(stack, 200)
        stack.home.announce({"url": stack.url})
        for delay in (0.0, 0.01, 0.03, 0.1):
            growing = lambda: bool(list(tmp_path.glob(".backup.partial-*/*")))  # noqa: E731 - reads better here
            await _killed(growing, delay, "backup", str(tmp_path / "backup"), "--home", str(stack.home.path))
            if (tmp_path / "backup").exists():
                read(tmp_path / "backup")
                shutil.rmtree(tmp_path / "backup")
        async with stack.wire("operator") as operator:
            made = await backup(operator, stack.home, tmp_path / "backup")
        assert not list(tmp_path.glob(".backup.partial-*"))
    home, left_behind = Home(tmp_path / "new"), False
    for delay in (0.0, 0.1, 0.3, 0.5):
        staged = (home.path / STAGE / "broker").exists
        await _killed(staged, delay, "restore", str(tmp_path / "backup"), "--home", str(home.path))
        if (home.broker / "jetstream").exists():
            break
        left_behind = left_behind or (home.path / STAGE).exists()
    assert left_behind, "none was killed in the middle"
    assert (await restore(home, tmp_path / "backup")).manifest.id == made.id
    assert not (home.path / STAGE).exists()
    async with installation(home.path) as stack:
        assert len(await all_of(stack, "AUDIT", "audit.core.>")) == 200


async def _killed(begun: Callable[[], bool], delay: float, *argv: str) -> None:
    """Run a command and kill it `delay` seconds after `begun`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dsec.sdk.cli", *argv),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    await until(lambda: begun() or process.returncode is not None, within=30)
    await asyncio.sleep(delay)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    await process.wait()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    point = tmp_path / "small"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", point], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", point], check=True)


async def test_a_full_disk_is_told_and_leaves_nothing(
    kept: tuple[Path, Manifest, list[Stored]], tmp_path: Path, small_disk: Path
) -> None:
    with pytest.raises(DiskFull, match="free some"):
        await restore(Home(small_disk / "home"), kept[0])
    assert not [path for path in small_disk.rglob("*") if path.suffix != ".lock" and path.is_file()]
    async with installation(tmp_path / "home") as stack, stack.wire("operator") as operator:
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / "file").write_bytes(os.urandom(5 << 20))
        async with ErofsImages(stack.home.images(NODE)) as images:
            await images.import_tree("large", tmp_path / "tree", "base")
        with pytest.raises(DiskFull):
            await backup(operator, stack.home, small_disk / "backup")
    assert not list(small_disk.glob("*backup*"))


async def test_a_layer_that_is_damaged_on_the_node_is_not_backed_up(tmp_path: Path) -> None:
    async with installation(tmp_path / "home") as stack, stack.wire("operator") as operator:
        await layers(stack.home, tmp_path / "tree")
        _flip(next((stack.home.images(NODE) / "layers").glob("*.erofs")), 6000)
        with pytest.raises(InfraError, match="damaged on this node's disk"):
            await backup(operator, stack.home, tmp_path / "backup")
        assert not list(tmp_path.glob("*backup*"))
        with pytest.raises(SpecError, match="exists"):
            await backup(operator, stack.home, tmp_path)
