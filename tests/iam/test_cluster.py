"""iam on several machines, each beside another server of a cluster, whose leader is lost meanwhile."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.bus.errors import DsecError, Unauthenticated
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.wire import Wire
from dsec.plugins.iam.entries import Member
from dsec.plugins.iam.store import STREAM, Store
from tests.cluster.conftest import Site, site_in

pytestmark = pytest.mark.slow


@contextlib.asynccontextmanager
async def stores(site: Site) -> AsyncIterator[list[Store]]:
    """One beside each server."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for name in site.trio.names:
            wire = await stack.enter_async_context(site.wire("iam", site.trio.url_of(name)))
            found.append(await stack.enter_async_context(Store.running(wire)))
        yield found


async def leader(site: Site) -> tuple[str, int]:
    """Of the bucket, and how many replicas it has."""
    answer = json.loads((await site.iam.request(f"$JS.API.STREAM.INFO.{STREAM}", b"", timeout=5)).data)
    return str(answer["cluster"]["leader"]), int(answer["config"]["num_replicas"])


def member(name: str) -> Member:
    return Member.of(Credentials.new(Role.TENANT, project="p-far", principal=name), created=0.0)


@pytest.mark.kill
async def test_identities_on_three_servers_survive_the_loss_of_their_leader(tmp_path: Path) -> None:
    """What was acknowledged on one server is seen beside each other at once; nothing of it is lost."""
    async with site_in(tmp_path) as site:
        lost, replicas = await leader(site)
        assert replicas == 3
        async with stores(site) as three:
            await _seen_at_once(three, "before")
            acknowledged: list[Member] = []
            others = [store for store, name in zip(three, site.trio.names, strict=True) if name != lost]

            async def write(store: Store, which: int) -> None:
                for number in range(60):
                    who = member(f"u-loss-{which}-{number}")
                    with contextlib.suppress(DsecError):
                        await store.change(lambda tables, who=who: tables.add_member(who))  # type: ignore[misc]
                        acknowledged.append(who)

            writers = [asyncio.create_task(write(store, which)) for which, store in enumerate(others)]
            await asyncio.sleep(0.3)
            await site.trio.end(lost)
            await asyncio.gather(*writers)
            assert len(acknowledged) >= 110
            for store in others:
                tables = await store.fresh()
                assert all(tables.owner_exists(who.owner) for who in acknowledged)
            await _seen_at_once(others, "after")
            who = Credentials.new(Role.TENANT, project="p-far", principal="u-late")
            await others[0].change(lambda tables: tables.add_member(Member.of(who, created=0.0)))
            async with Wire.connect(site.trio.url, who, timeout=20):
                pass
            await others[1].change(lambda tables: tables.remove(["u-late"]))
            with pytest.raises(Unauthenticated):
                async with Wire.connect(site.trio.url, who, timeout=20):
                    pass


async def _seen_at_once(stores: list[Store], prefix: str) -> None:
    for number in range(30):
        writer, reader = stores[number % len(stores)], stores[(number + 1) % len(stores)]
        who = member(f"u-{prefix}-{number}")
        await writer.change(lambda tables, who=who: tables.add_member(who))  # type: ignore[misc] # bound now
        assert await reader.find(who.public) is not None
        await reader.change(lambda tables, who=who: tables.remove([who.owner]))  # type: ignore[misc]
        assert await writer.find(who.public) is None
