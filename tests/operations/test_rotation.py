"""Keys are replaced while work goes on: of principals, parts, nodes, iam itself and the issuer."""

import asyncio
import dataclasses
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from dsec.bus.errors import GoneError, SpecError, Unauthenticated
from dsec.bus.home import Home
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.wire import Wire
from dsec.plugins.iam import Iam
from dsec.plugins.iam.__main__ import main
from dsec.plugins.iam.bundle import MEMBERS, bring_in, export
from dsec.plugins.iam.rotation import rotate
from dsec.sdk import Client
from tests.cli.conftest import dsec_process
from tests.sim.support import plane
from tests.wire.support import Stack, until


async def refused(url: str, who: Credentials) -> None:
    with pytest.raises(Unauthenticated):
        async with Wire.connect(url, who):
            pass


async def test_a_rotated_principal_is_refused_with_its_old_key_at_once(stack: Stack, tmp_path: Path) -> None:
    own = stack.prepared.path("u-admin")
    async with Client(stack.url, own) as admin:
        made = await admin.principals.create("u-turn")
    file = tmp_path / "u-turn.json"
    made.save(file)
    kept = dataclasses.replace(made, source=None)
    loaded = Credentials.load(file)
    async with Wire.connect(stack.url, kept) as old, Wire.connect(stack.url, loaded) as reading:
        where = ("--url", stack.url, "--credentials", str(own))
        done = await dsec_process("principal", "rotate", "u-turn", *where, "--out", str(file), "--json")
        assert done.objects == [{"project": "p-default", "principal": "u-turn", "credentials": str(file)}]
        assert not list(tmp_path.glob("*.new"))
        await refused(stack.url, kept)
        await until(lambda: not old.connected, within=6)
        fresh = Credentials.load(file)
        assert fresh.public != made.public
        async with Wire.connect(stack.url, fresh) as new:
            await asyncio.sleep(4)
            assert new.connected, "what began after the rotation stays"
            assert reading.connected, "who reads the file again is back by itself"
            assert not old.connected


async def test_what_cannot_be_rotated_leaves_no_key_behind(stack: Stack, tmp_path: Path) -> None:
    where = ("--url", stack.url, "--credentials", str(stack.prepared.path("u-admin")))
    done = await dsec_process("principal", "rotate", "u-nobody", *where, "--out", str(tmp_path / "x.json"))
    assert "gone" in done.err
    assert not list(tmp_path.iterdir())
    nowhere = await dsec_process("principal", "rotate", "u-admin", *where, "--out", "/dev/null/x.json")
    assert "choose another --out" in nowhere.err
    async with stack.wire("u-admin"):
        pass


async def test_a_principal_rotates_its_own_key_and_goes_on(stack: Stack, tmp_path: Path) -> None:
    async with Client(stack.url, stack.credentials("u-admin")) as admin:
        made = await admin.principals.create("u-self", rights=("iam", "sandbox"))
    made.save(tmp_path / "u-self.json")
    async with Client(stack.url, tmp_path / "u-self.json") as client:
        fresh = await client.principals.rotate("u-self")
        fresh.save(tmp_path / "u-self.json")
        await refused(stack.url, made)
        await asyncio.sleep(1)
        assert [one.principal async for one in client.principals.list(project="p-default")]


def test_a_file_of_somebody_else_is_not_taken_for_a_new_key(tmp_path: Path) -> None:
    mine = Credentials.new(Role.EDGE, node="n-a")
    mine.save(tmp_path / "who.json")
    loaded = Credentials.load(tmp_path / "who.json")
    fresh = mine.renewed()
    fresh.save(tmp_path / "who.json")
    assert loaded.current() == fresh
    for other in (Credentials.new(Role.EDGE, node="n-b"), Credentials.new(Role.CORE)):
        other.save(tmp_path / "who.json")
        assert loaded.current() == loaded
    (tmp_path / "who.json").write_text("no credentials")
    assert loaded.current() == loaded
    (tmp_path / "who.json").unlink()
    assert loaded.current() == loaded


async def test_with_a_grace_the_former_key_works_until_it_is_over(stack: Stack) -> None:
    before = stack.credentials("n-b")
    before = dataclasses.replace(before, source=None)
    rotate(stack.home, "n-b", grace=4)
    began = time.monotonic()
    async with Wire.connect(stack.url, before) as wire:
        async with stack.wire("n-b"), Wire.connect(stack.url, before):
            pass
        await asyncio.sleep(began + 6 - time.monotonic())
        assert not wire.connected
    await refused(stack.url, before)


def test_credentials_of_elsewhere_are_not_rotated_here(tmp_path: Path) -> None:
    Iam.prepare(Home(tmp_path))
    for owner in ("u-stranger", "d-a-x"):
        with pytest.raises(GoneError):
            rotate(Home(tmp_path), owner)


@pytest.mark.slow
async def test_every_key_is_rotated_under_load_and_nothing_fails(tmp_path: Path) -> None:
    """Parts, a node, iam and the issuer in turn; creates go on, what lives stays, old keys are worthless."""
    async with plane(tmp_path) as control, control.nodes() as nodes, control.client() as client:
        first = await client.create(image="base", backend="sim")
        made: list[str] = []
        stop = asyncio.Event()

        async def work() -> None:
            while not stop.is_set():
                made.append((await client.create(image="base", backend="sim")).id)
                await asyncio.sleep(0.05)

        workers = [asyncio.create_task(work()) for _ in range(3)]
        names = ("core", "scheduler", "journal", next(iter(nodes)), "iam", "issuer", "operator")
        files = {name: tmp_path / "credentials" / f"{name}.json" for name in names if name != "issuer"}
        old = {name: dataclasses.replace(Credentials.load(file), source=None) for name, file in files.items()}
        issuer = (tmp_path / "parts/iam/issuer.json").read_bytes()
        for name in names:
            count = len(made)
            assert await asyncio.to_thread(main, ["--home", str(tmp_path), "rotate", name]) == 0
            await until(lambda count=count: len(made) > count + 5, within=20)  # type: ignore[misc] # bound now
        stop.set()
        await asyncio.gather(*workers)
        assert (tmp_path / "parts/iam/issuer.json").read_bytes() != issuer
        for name, who in old.items():
            assert Credentials.load(files[name]).public != who.public
            await refused(control.part.url, who)
        assert len(set(made)) == len(made)
        seen = {record.sandbox async for record in client.list()}
        assert {first.id, *made} <= seen


@pytest.mark.kill
async def test_an_iam_of_a_second_machine_serves_when_the_first_is_stopped(tmp_path: Path) -> None:
    """Its home has what was exported, and it runs as the manual tells."""
    async with plane(tmp_path / "one") as control, control.client() as client:
        second = Home(tmp_path / "two")
        export(control.home, tmp_path / "bundle")
        bring_in(second, tmp_path / "bundle")
        made = await client.principals.create("u-both")
        pid = int(control.home.ready()["pid"])
        run = ("plugin", "run", "iam", "--broker", control.part.url, "--home", str(second.path), "--json")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dsec.sdk.cli", *run),
            *("--credentials", str(second.credentials / "iam.json")),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), 30)
            os.kill(pid, signal.SIGSTOP)  # the broker is a process of its own
            try:
                async with Wire.connect(control.part.url, made, timeout=20):
                    pass
            finally:
                os.kill(pid, signal.SIGCONT)
        finally:
            process.terminate()
            await process.wait()


async def test_a_rotation_that_was_cut_off_is_finished_by_the_next_start(tmp_path: Path) -> None:
    """Killed between the next keys and the broker's restart: the old ones count until then."""
    home = Home(tmp_path)
    before = Iam.prepare(home)
    assert main(["--home", str(tmp_path), "rotate", "iam"]) == 0
    assert Iam.prepare(home).auth.iam != before.auth.iam
    shutil.copy(home.credentials / "iam.json", home.credentials / "iam.json.next")
    os.utime(home.credentials / "iam.json.next")
    Iam.settle(home)
    assert not (home.credentials / "iam.json.next").exists()


def test_a_second_machine_gets_the_control_plane_in_one_private_file(tmp_path: Path) -> None:
    first, second = Home(tmp_path / "one"), Home(tmp_path / "two")
    with pytest.raises(SpecError, match="start the control plane"):
        export(first, tmp_path / "bundle")
    prepared = Iam.prepare(first)
    export(first, tmp_path / "bundle")
    assert (tmp_path / "bundle").stat().st_mode & 0o777 == 0o600
    with pytest.raises(SpecError, match="exists"):
        export(first, tmp_path / "bundle")
    bring_in(second, tmp_path / "bundle")
    assert Iam.prepare(second).auth == prepared.auth
    assert not (second.credentials / "u-admin.json").exists(), "the first machine's key must stay good"
    for name in MEMBERS:
        assert (second.path / name).read_bytes() == (first.path / name).read_bytes()
        assert (second.path / name).stat().st_mode & 0o777 == 0o600
    whole = (tmp_path / "bundle").read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"x" * 4096):
        (tmp_path / "damaged").write_bytes(damaged)
        third = Home(tmp_path / "three")
        with pytest.raises(SpecError, match="bundle"):
            bring_in(third, tmp_path / "damaged")
        assert not third.path.exists()
