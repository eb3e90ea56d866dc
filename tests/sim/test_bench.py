"""The control plane's benchmark, short: what it reports is counted where it lies, not by itself."""

from __future__ import annotations

import os
import sys
from asyncio import create_subprocess_exec
from asyncio.subprocess import DEVNULL, PIPE

import orjson
import pytest


@pytest.mark.node
@pytest.mark.slow
async def test_every_create_of_the_benchmark_is_found_everywhere_and_once() -> None:
    process = await create_subprocess_exec(
        *(sys.executable, "-m", "dsec.sdk.cli", "bench", "control", "--json"),
        stdout=PIPE,
        stderr=DEVNULL,
        env={**os.environ, "DSEC_BENCH_RATE": "500", "DSEC_BENCH_SECONDS": "3"},
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    figures = orjson.loads(out.splitlines()[-1])
    assert (figures["lost"], figures["duplicated"], figures["errors"]) == (0, 0, {})
    assert figures["offered_per_s"] == pytest.approx(500, rel=0.05)
    counts = {name: n for name, n in figures.items() if name.startswith("counted_")}
    assert set(counts) == {
        f"counted_{place}"
        for place in ("claimed", "journalled", "registered", "told", "audited_core", "audited_edge")
    }
    assert len(set(counts.values())) == 1
    assert counts["counted_claimed"] >= 3 * 450
    assert figures["cpu_us"] > 0
    assert figures["p99_ms"] >= figures["p50_ms"] > 0
