"""iam on several machines: homes of their own, one bucket."""

import asyncio
import contextlib
import dataclasses
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dsec.bus import registry
from dsec.bus.errors import Conflict, InfraError, PolicyError, Unauthenticated
from dsec.bus.home import Home
from dsec.bus.host import Context
from dsec.bus.messages import Audit
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.directget import DirectGet
from dsec.bus.nats.wire import Wire
from dsec.plugins.iam import Iam
from dsec.plugins.iam.entries import Member
from dsec.plugins.iam.issuer import Issuer
from dsec.plugins.iam.pending import Order, Pending
from dsec.plugins.iam.store import Store
from dsec.plugins.iam.tables import Tables
from dsec.sdk import Client
from tests.wire.support import Stack, running_broker_with_iam, until


@contextlib.asynccontextmanager
async def second_machine(stack: Stack, path: Path) -> AsyncIterator[Home]:
    """A home with what the operator copies, and an iam over it."""
    home = Home(path)
    for part in ("credentials/iam.json", "parts/iam/issuer.json"):
        copy = path / part
        copy.parent.mkdir(parents=True, mode=0o700)
        shutil.copy(stack.home.path / part, copy)
    async with (
        Wire.connect(stack.url, Credentials.load(home.credentials / "iam.json")) as wire,
        Iam.running(wire, Context(home.part("iam"))),
    ):
        yield home


@contextlib.asynccontextmanager
async def broker_with_streams(path: Path) -> AsyncIterator[Stack]:
    """Without AUDIT, iam's last words would be waited for."""
    async with running_broker_with_iam(path) as stack:
        async with stack.wire("core") as core:
            await registry.ensure(core.jetstream, exec_bytes=64 << 20)
        yield stack


@contextlib.asynccontextmanager
async def following(stack: Stack) -> AsyncIterator[Store]:
    async with stack.wire("iam") as wire, Store.running(wire) as store:
        yield store


@pytest_asyncio.fixture(loop_scope="session")
async def two(stack: Stack) -> AsyncIterator[tuple[Store, Store]]:
    async with following(stack) as one, following(stack) as other:
        yield one, other


def member(name: str, project: str = "p-machines") -> Member:
    return Member.of(Credentials.new(Role.TENANT, project=project, principal=name), created=time.time())


async def test_what_one_iam_acknowledged_every_other_serves_at_once(two: tuple[Store, Store]) -> None:
    one, other = two
    for number in range(20):
        who = member(f"u-seen-{number}")
        await one.change(lambda tables, who=who: tables.add_member(who))  # type: ignore[misc] # bound now
        found = await other.find(who.public)
        assert found is not None
        await other.change(lambda tables, who=who: tables.remove([who.owner]))  # type: ignore[misc]
        assert await one.find(who.public) is None


async def test_of_changes_at_the_same_time_none_is_lost_and_a_name_goes_to_one(
    two: tuple[Store, Store],
) -> None:
    async def add(store: Store, name: str) -> bool:
        who = member(name)
        try:
            await store.change(lambda tables: tables.add_member(who))
        except Conflict:
            return False
        return True

    won = await asyncio.gather(*(add(store, f"u-race-{n}") for n in range(25) for store in two))
    assert sum(won) == 25
    for store in two:
        tables = await store.fresh()
        assert all(tables.owner_exists(f"u-race-{n}") for n in range(25))


async def test_a_check_and_what_rests_on_it_are_one_transaction(two: tuple[Store, Store]) -> None:
    """Each takes a place if fewer than three are taken: two that saw the same two must not both take one."""
    places = [member(f"u-place-{n}", "p-places") for n in range(12)]

    def take(tables: Tables, who: Member) -> bool:
        if tables.count_principals("p-places") >= 3:
            return False
        tables.add_member(who)
        return True

    taken = await asyncio.gather(
        *(two[n % 2].change(lambda tables, who=who: take(tables, who)) for n, who in enumerate(places))  # type: ignore[misc]
    )
    assert sum(taken) == 3
    assert (await two[0].fresh()).count_principals("p-places") == 3


async def test_a_revocation_on_one_machine_closes_the_door_of_the_other(stack: Stack, tmp_path: Path) -> None:
    async with (
        second_machine(stack, tmp_path) as home,
        Client(stack.url, stack.credentials("u-admin")) as admin,
    ):
        for number in range(5):
            who = await admin.principals.create(f"u-far-{number}")
            async with Wire.connect(stack.url, who):
                pass
            await admin.principals.revoke(f"u-far-{number}")
            with pytest.raises(Unauthenticated):
                async with Wire.connect(stack.url, who):
                    pass
        orders = [Iam.create_principal(home, "p-far", f"u-order-{number}") for number in range(2)]
        await asyncio.sleep(1.5)  # the first iam may be asked, which does not see that home
        for who in orders:
            async with Wire.connect(stack.url, who) as wire:
                assert wire.connected
        Iam.remove(home, "u-order-0")
        async with Wire.connect(stack.url, orders[1]) as wire:
            Iam.remove(home, "u-order-1")
            await until(lambda: not wire.connected, within=6)


async def test_what_an_operator_orders_in_a_home_is_audited(stack: Stack) -> None:
    who = Iam.create_principal(stack.home, "p-ordered", "u-ordered")
    async with Wire.connect(stack.url, who):
        pass
    async with stack.wire("operator") as operator, DirectGet.running(operator) as reader:
        async with asyncio.timeout(5):
            while (entry := await reader.newest("AUDIT", "audit.iam.add.p-ordered")) is None:  # noqa: ASYNC110 - a stream tells nobody
                await asyncio.sleep(0.05)
    told = Audit.model_validate_json(entry.data)
    assert (told.op, told.principal, told.target, told.outcome) == ("iam.add", "operator", "u-ordered", "ok")


async def test_of_many_orders_those_that_cannot_be_done_are_left_out(
    stack: Stack, two: tuple[Store, Store], tmp_path: Path
) -> None:
    """A name of another home, in the middle of five hundred; the others all come to be."""
    taken = member("u-order-250")
    await two[0].change(lambda tables: tables.add_member(taken))
    pending = Pending(tmp_path)
    for number in range(500):
        pending.note(Order("add", member(f"u-order-{number}")))
    done = await pending.take_in(two[1])
    assert len(done) == 499
    assert not pending.waiting()
    found = (await two[0].fresh()).member("u-order-250")
    assert found is not None
    assert found.public == taken.public
    assert (await two[0].fresh()).owner_exists("u-order-499")


async def test_an_iam_that_was_away_has_missed_nothing(stack: Stack, two: tuple[Store, Store]) -> None:
    one, other = two
    gone, new = member("u-away-gone"), member("u-away-new")
    await one.change(lambda tables: tables.add_member(gone))
    assert await other.find(gone.public)
    for wire in (one._bus, other._bus):
        assert isinstance(wire, Wire)
    await one.change(lambda tables: tables.remove([gone.owner]))
    await one.change(lambda tables: tables.add_member(new))
    async with following(stack) as third:
        for store in (other, third):
            assert await store.find(gone.public) is None
            assert await store.find(new.public) is not None


@pytest.mark.kill
async def test_after_the_broker_was_killed_identities_are_there_and_clients_come_back_together(
    tmp_path: Path,
) -> None:
    """A hundred at once, each judged from what is fresh."""
    async with broker_with_streams(tmp_path) as stack, contextlib.AsyncExitStack() as connections:
        admin = await connections.enter_async_context(Client(stack.url, stack.credentials("u-admin")))
        made = [await admin.principals.create(f"u-crowd-{number}") for number in range(10)]
        wires = [
            await connections.enter_async_context(Wire.connect(stack.url, who))
            for who in made
            for _ in range(10)
        ]
        await admin.principals.revoke("u-crowd-0")
        os.kill(stack.broker.pid, signal.SIGKILL)
        await until(lambda: not any(wire.connected for wire in wires), within=5)
        await until(lambda: all(wire.connected for wire in wires[10:]), within=20)
        assert not any(wire.connected for wire in wires[:10])


async def test_a_bucket_that_was_lost_is_not_served_from_memory(tmp_path: Path) -> None:
    """The broker comes back with an empty store: nobody can be judged until iam starts anew."""
    async with running_broker_with_iam(tmp_path) as stack, following(stack) as store:
        who = member("u-lost")
        await store.change(lambda tables: tables.add_member(who))
        process = stack.broker.pid
        os.kill(process, signal.SIGSTOP)
        shutil.rmtree(stack.home.broker / "jetstream")
        os.kill(process, signal.SIGKILL)
        with pytest.raises(InfraError, match="identities: stream not found"):
            await store.find(who.public)


FORMER = """
CREATE TABLE identity (public TEXT PRIMARY KEY, owner TEXT NOT NULL UNIQUE, role TEXT NOT NULL,
  project TEXT NOT NULL, principal TEXT NOT NULL, node TEXT NOT NULL, created REAL NOT NULL) STRICT;
CREATE TABLE principal (owner TEXT PRIMARY KEY, rights TEXT NOT NULL, made_by TEXT NOT NULL) STRICT;
CREATE TABLE project (project TEXT PRIMARY KEY, parent TEXT NOT NULL, quota TEXT NOT NULL,
  created REAL NOT NULL) STRICT;
"""


async def test_the_store_of_an_older_version_is_taken_over_once(tmp_path: Path) -> None:
    home = Home(tmp_path)
    prepared = Iam.prepare(home, nodes=["n-a"])
    shutil.rmtree(home.part("iam") / "pending")
    lab = Credentials.new(Role.TENANT, project="p-lab", principal="u-lab")
    known = [prepared.credentials(owner) for owner in ("core", "n-a", "u-admin", "iam", "operator")]
    with contextlib.closing(sqlite3.connect(home.part("iam") / "identities.sqlite3")) as database, database:
        database.executescript(FORMER)
        for who in (*known, lab):
            row = (who.public, who.owner, who.role.value, who.project, who.principal, who.node, 1.0)
            database.execute("INSERT INTO identity VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        database.execute("INSERT INTO principal VALUES ('u-lab', 'iam sandbox', 'u-admin')")
        database.execute("INSERT INTO project VALUES ('p-lab', 'p-default', '{\"sandboxes\": 7}', 1.0)")
    async with broker_with_streams(tmp_path) as stack:
        for who in (known[0], known[1], lab):
            async with Wire.connect(stack.url, who):
                pass
        async with Client(stack.url, known[2]) as admin:
            projects = {one.project: one.quota.sandboxes async for one in admin.projects.list()}
            people = {one.principal: one.rights async for one in admin.principals.list()}
            assert projects["p-lab"] == 7
            assert people["u-lab"] == ("iam", "sandbox")
            await admin.principals.revoke("u-lab")
    assert not (home.part("iam") / "identities.sqlite3").exists()
    (home.part("iam") / "identities.sqlite3.moved").rename(home.part("iam") / "identities.sqlite3")
    async with broker_with_streams(tmp_path) as stack:
        with pytest.raises(Unauthenticated):
            async with Wire.connect(stack.url, lab):
                pass


async def test_a_damaged_store_of_an_older_version_stops_the_start(stack: Stack, tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.part("iam").mkdir(parents=True)
    Issuer(home.part("iam"))
    (home.part("iam") / "identities.sqlite3").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 20)
    async with stack.wire("iam") as wire:
        with pytest.raises(InfraError, match="the identities in"):
            async with Iam.running(wire, Context(home.part("iam"))):
                pass


async def test_nobody_but_iam_reaches_the_bucket(stack: Stack) -> None:
    for owner in ("u-admin", "core", "n-a", "scheduler", "operator"):
        async with stack.wire(owner) as wire:
            for subject in ("$KV.iam.member.u-admin", "$JS.API.STREAM.UPDATE.KV_iam"):
                with pytest.raises(PolicyError):
                    await wire.request(subject, b"{}", timeout=5)


def test_entries_survive_their_encoding_and_fields_of_newer_versions() -> None:
    one = dataclasses.replace(member("u-a"), rights=("iam",), former="UX", former_until=5.0)
    assert Member.decoded(one.encoded()) == one
    assert Member.decoded(one.encoded()[:-1] + b',"colour":"red"}') == one
