"""A driver behind the proxy is the same driver; what happens while it is away, and when it is back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.bus.driver import CanPause, CanReclaim, CountsOom, Death, Handle, MayBeAway
from dsec.bus.errors import NoCapacity, NodeLost, NoSuchSandbox, Unsupported
from dsec.bus.local import Hub
from dsec.bus.remote import handover, messages, peer
from dsec.bus.remote.proxy import RemoteDriver
from dsec.bus.remote.remotes import Remotes
from dsec.bus.remote.serving import Served, serve_driver
from tests.processes.books import INFO, ROOTFS, Books, PausingBooks, ReclaimingBooks, order
from tests.wire.support import until


class Site:
    """An edge's side and, as often as a test likes, a driver's."""

    def __init__(self, path: Path) -> None:
        self.hub, self.path = Hub(), path
        self.kept: dict[str, bool] = {}
        self.handles: dict[str, Handle] = {}
        self.drivers: dict[str, RemoteDriver] = {}
        self.joins = 0

    async def joined(self, name: str, driver: RemoteDriver) -> None:
        """As an edge does it."""
        self.joins += 1
        self.drivers[name] = driver
        for handle in self.handles.values():
            with contextlib.suppress(NoSuchSandbox):
                await driver.recover(handle)

    @property
    def driver(self) -> RemoteDriver:
        return self.drivers["books"]

    @contextlib.asynccontextmanager
    async def edge(self, *taken: str) -> AsyncIterator[None]:
        bus = self.hub.bus("n-a")
        async with Remotes.running(bus, "n-a", taken=taken, known=["books"], joined=self.joined):
            yield

    @contextlib.asynccontextmanager
    async def serving(self, kind: type[Books] = Books) -> AsyncIterator[tuple[Books, Served]]:
        books = kind(self.kept)
        bus = self.hub.bus("d-a-books")
        async with serve_driver(bus, "n-a", books, self.path / "books.sock") as served:
            if self.drivers:
                await until(lambda: not self.driver.away, within=15)
            yield books, served

    async def created(self, sandbox: str) -> Handle:
        handle = self.handles[sandbox] = await self.driver.create(order(sandbox), ROOTFS)
        return handle


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_the_proxy_is_the_driver_that_it_stands_for(site: Site) -> None:
    async with site.serving() as (books, _), site.edge():
        assert site.driver.info() == INFO
        handle = await site.created("s-a-1")
        assert handle == Handle("s-a-1", "books", 3, b"/a\0")
        channel = await site.driver.channel("s-a-1")
        with channel.socket:
            assert channel.socket.recv(100) == b"s-a-1"
            assert (channel.descriptors, channel.cgroup) == (True, Path("/c"))
        assert await site.driver.inspect("s-a-1") is None
        await site.driver.destroy("s-a-1")
        await site.driver.destroy("s-a-1")
        assert books.kept == {}
        with pytest.raises(NoSuchSandbox, match="not in the books"):
            await site.driver.inspect("s-a-1")


async def test_errors_keep_their_type_and_field(site: Site) -> None:
    async with site.serving(), site.edge():
        with pytest.raises(Unsupported) as caught:
            await site.driver.create(order("s-a-1", memory=1 << 30), ROOTFS)
        assert caught.value.field == "limits.memory"


async def test_abilities_are_those_of_the_driver_also_after_it_has_changed(site: Site) -> None:
    async with site.edge():
        async with site.serving():
            await until(lambda: "books" in site.drivers and not site.driver.away, within=15)
            assert isinstance(site.driver, MayBeAway)
            assert not isinstance(site.driver, CanPause)
            await site.created("s-a-1")
        async with site.serving(PausingBooks):
            await until(lambda: isinstance(site.driver, CanPause), within=15)
            assert not isinstance(site.driver, CountsOom | CanReclaim)
            assert isinstance(site.driver, CanPause)
            await site.driver.pause("s-a-1")


async def test_memory_is_taken_by_the_driver_that_can(site: Site) -> None:
    async with site.edge(), site.serving(ReclaimingBooks) as (books, _):
        await until(lambda: "books" in site.drivers and not site.driver.away, within=15)
        await site.created("s-a-1")
        driver: object = site.driver
        assert isinstance(driver, CanReclaim)
        await driver.pause("s-a-1")
        await driver.reclaim("s-a-1")
        assert isinstance(books, ReclaimingBooks)
        assert books.reclaimed == ["s-a-1"]


async def test_deaths_are_told_as_they_happen_and_those_nobody_saw_when_it_is_back(site: Site) -> None:
    async with site.edge():
        async with site.serving() as (books, _):
            await until(lambda: "books" in site.drivers and not site.driver.away, within=15)
            deaths = site.driver.watch()
            await site.created("s-a-1")
            await site.created("s-a-2")
            books.die("s-a-1")
            assert (await asyncio.wait_for(anext(deaths), 10)).sandbox == "s-a-1"
            del site.handles["s-a-1"]
        site.kept["s-a-2"] = False
        async with site.serving():
            told: Death = await asyncio.wait_for(anext(deaths), 10)
            assert (told.sandbox, told.reason) == ("s-a-2", "it ended")


async def test_while_it_is_away_creates_are_given_back_and_nothing_else_fails(site: Site) -> None:
    async with site.edge():
        async with site.serving():
            await until(lambda: "books" in site.drivers and not site.driver.away, within=15)
            await site.created("s-a-1")
        with pytest.raises(NoCapacity):
            await site.driver.create(order("s-a-2"), ROOTFS)
        await asyncio.wait_for(site.driver.destroy("s-a-2"), 5)  # it never heard of it
        assert site.driver.away
        with pytest.raises(NodeLost):
            await site.driver.check()
        looking = asyncio.create_task(site.driver.inspect("s-a-1"))
        opening = asyncio.create_task(site.driver.channel("s-a-1"))
        ending = asyncio.create_task(site.driver.destroy("s-a-3"))
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in (looking, opening, ending))
        async with site.serving() as (books, _):
            async with asyncio.timeout(15):
                assert await looking is None
                channel = await opening
                await ending
            assert books.known == {"s-a-1"}
            with channel.socket:
                assert channel.socket.recv(100) == b"s-a-1"


async def test_a_create_under_way_is_given_back_when_another_instance_answers(site: Site) -> None:
    async with site.edge():
        async with site.serving() as (books, _):
            await until(lambda: "books" in site.drivers and not site.driver.away, within=15)
            books.slow.clear()
            creating = asyncio.create_task(site.driver.create(order("s-a-1"), ROOTFS))
            await asyncio.sleep(0.1)
        async with site.serving():
            with pytest.raises(NoCapacity, match="died over create"):
                await asyncio.wait_for(creating, 15)
            await asyncio.wait_for(site.driver.destroy("s-a-1"), 15)


async def test_one_that_leaves_says_so_and_one_that_is_silent_is_noticed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site.edge():
        async with site.serving() as (_, served):
            await until(lambda: "books" in site.drivers and not site.driver.away, within=15)
            await served.leave(1)
            await until(lambda: site.driver.away, within=15)
        monkeypatch.setattr(peer, "SILENCE", 0.2)
        async with site.serving():
            await until(lambda: site.driver.away, within=15)  # it beats once a second
            await until(lambda: not site.driver.away, within=15)
    assert site.joins >= 3


async def test_a_driver_of_another_machine_or_with_a_taken_name_is_not_used(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with site.edge("books"), site.serving():
        await until(lambda: "start the node without it" in caplog.text, within=5)
    monkeypatch.setattr(messages, "machine", lambda: "elsewhere/1")
    async with site.edge(), site.serving():
        await until(lambda: "does not see the mounts" in caplog.text, within=5)
    assert site.drivers == {}


async def test_a_ticket_is_good_once_and_a_wrong_one_for_nothing(tmp_path: Path) -> None:
    books = Books({})
    await books.create(order("s-a-1"), ROOTFS)
    async with handover.Desk.running(tmp_path / "door") as desk:
        ticket = desk.offer((await books.channel("s-a-1")).socket)
        with await handover.fetch(desk.path, ticket) as channel:
            assert channel.recv(100) == b"s-a-1"
        for wrong in (ticket, "0" * handover.TICKET):
            with pytest.raises(NodeLost, match="nothing of the ticket"):
                await handover.fetch(desk.path, wrong)
        assert (tmp_path / "door").stat().st_mode & 0o777 == 0o600
    with pytest.raises(NodeLost):
        await handover.fetch(tmp_path / "door", ticket)
    assert list(tmp_path.iterdir()) == []


async def test_channels_that_nobody_fetches_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "KEPT", 0.05)
    books = Books({})
    await books.create(order("s-a-1"), ROOTFS)
    async with handover.Desk.running(tmp_path / "door") as desk:
        forgotten = (await books.channel("s-a-1")).socket
        desk.offer(forgotten)
        await until(lambda: forgotten.fileno() < 0, within=10)
        left = (await books.channel("s-a-1")).socket
        desk.offer(left)
    assert left.fileno() < 0
