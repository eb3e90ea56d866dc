"""What iam asks of the servers reaches each of them: a revoked principal is out wherever it is connected."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial

from dsec.plugins.iam import Iam
from dsec.plugins.iam.ending import WITHIN
from tests.cluster.conftest import Site


async def test_connections_of_a_revoked_principal_end_on_every_server(site: Site) -> None:
    who = await asyncio.to_thread(Iam.create_principal, site.home, "p-out", "u-out")
    broken: set[str] = set()
    async with AsyncExitStack() as stack:
        for name in site.trio.names:
            wire = await stack.enter_async_context(site.wire(who.owner, site.trio.url_of(name)))
            wire.on_disconnected(partial(broken.add, name))
        staying = await stack.enter_async_context(site.wire("u-admin"))
        await asyncio.to_thread(Iam.remove, site.home, who.owner)
        async with asyncio.timeout(WITHIN + 5):
            while broken != set(site.trio.names):  # noqa: ASYNC110 - a set tells nobody of its growth
                await asyncio.sleep(0.05)
        assert staying.connected
