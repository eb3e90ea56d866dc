"""How many copies of a stream there are, and that whoever reads after a write reads it, replicas or not."""

from __future__ import annotations

import asyncio
import itertools
import json
import stat
from pathlib import Path

import pytest

from dsec.bus import registry
from dsec.bus.core.claims import Claims
from dsec.bus.errors import BrokerDown, InfraError
from dsec.bus.nats import cluster
from dsec.bus.nats.directget import DirectGet, answer_of, patiently
from dsec.bus.nats.wire import Wire
from dsec.plugins.iam.rights import STREAMS
from tests.cluster.conftest import EXEC_BYTES, Site, site_in


async def replicas(wire: Wire) -> dict[str, int]:
    """Of every stream and bucket, as configured."""
    told = {}
    for stream in STREAMS:
        answer = answer_of(await wire.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=5))
        told[stream] = int(answer["config"]["num_replicas"])
    return told


async def test_every_stream_and_bucket_has_three_replicas(site: Site) -> None:
    async with site.wire("operator") as wire:
        assert set((await replicas(wire)).values()) == {3}


async def test_streams_of_one_replica_get_three_and_keep_what_they_hold(tmp_path: Path) -> None:
    async with site_in(tmp_path) as site, site.wire("core") as core, DirectGet.running(core) as reader:
        await patiently(lambda: registry.ensure(core.jetstream, EXEC_BYTES))
        claims = Claims(core, reader)
        made = await claims.claim("p-a", "before", "digest", "s-a-one")
        assert (site.told.size, site.told.replicas) == (3, 3)
        await registry.ensure(core.jetstream, EXEC_BYTES, replicas=site.told.replicas)
        assert set((await replicas(core)).values()) == {3}
        assert await claims.get("p-a", "before") == made
        await registry.ensure(core.jetstream, EXEC_BYTES, replicas=1)
        assert set((await replicas(core)).values()) == {3}, "a cluster that grew must not shrink by itself"


async def test_more_replicas_than_servers_is_typed(site: Site) -> None:
    async with site.wire("core") as core:
        with pytest.raises(BrokerDown, match="on 5 servers now"):
            await registry.ensure(core.jetstream, EXEC_BYTES, replicas=5)


async def test_nobody_else_may_survey_the_servers(site: Site) -> None:
    async with site.wire("core") as core:
        with pytest.raises((BrokerDown, InfraError)):
            await cluster.survey(core, within=0.5)


async def test_reads_after_writes_see_them_whichever_replica_is_asked(site: Site) -> None:
    """Many at once on connections to all servers: a replica that is a moment behind is met often."""
    numbers = itertools.count()
    stale = 0

    async def rounds(url: str) -> None:
        nonlocal stale
        async with site.wire("core", url) as core, DirectGet.running(core) as reader:
            claims = Claims(core, reader)
            for _ in range(150):
                key = f"k-{next(numbers)}"
                made = await claims.claim("p-fresh", key, "digest", f"s-a-{key}")
                direct = await reader.last("KV_ops", f"$KV.ops.p-fresh.{key}")
                stale += direct is None
                assert await claims.get("p-fresh", key) == made
                whole = await reader.whole(
                    "KV_ops", "$KV.ops.p-fresh.>", made.revision, count=10, max_bytes=1 << 20
                )
                assert made.revision in {one.sequence for one in whole.messages}

    await asyncio.gather(*(rounds(site.trio.url_of(name)) for name in site.trio.names))
    print(f"{stale} of 450 plain direct gets missed a write that was acknowledged")


async def test_two_cores_on_different_servers_settle_one_claim_once(site: Site) -> None:
    one, two, _ = site.trio.names
    async with (
        site.wire("core", site.trio.url_of(one)) as first,
        site.wire("core", site.trio.url_of(two)) as second,
        DirectGet.running(first) as first_reader,
        DirectGet.running(second) as second_reader,
    ):
        cores = [Claims(first, first_reader), Claims(second, second_reader)]
        for number in range(100):
            made = await cores[0].claim("p-race", f"r-{number}", "digest", "s-a-first")
            settled = await asyncio.gather(
                *(core.settle(made, f"s-b-{which}") for which, core in enumerate(cores))
            )
            assert settled[0] == settled[1]


async def test_the_configuration_is_private_and_names_no_secret_of_iam(site: Site) -> None:
    for name in site.trio.names:
        file = site.trio.directory / name / "nats.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        config = json.loads(file.read_text())
        assert config["cluster"]["tls"]["verify"]
        assert config["tls"]["cert_file"]
        assert site.prepared.credentials("iam").seed not in file.read_text()
    assert stat.S_IMODE((site.trio.directory / "ca.key").stat().st_mode) == 0o600
