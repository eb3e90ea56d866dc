"""Processes of the platform that tell their metrics and log everything as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from dsec.bus.errors import Failure
from dsec.plugins.sim import Fault, Outcome, SimConfig
from dsec.sdk.testing import platform

OBSERVED = ("--metrics", "127.0.0.1:0", "--log", "json", "--log-level", "debug")
NODES = 2
HELLO = "hello, log"
"""What every command of a simulated sandbox prints."""
CONFIG = SimConfig(
    backends=("sim", "broken"),
    outcomes=(Outcome(argv=("false",), code=1), Outcome(stdout=HELLO)),
    faults=(Fault(verb="pause", failure=Failure.LIMIT, rate=1.0),),
)


@dataclass(slots=True)
class Page:
    """One scrape, as prometheus-client reads it."""

    families: dict[str, Metric]

    def value(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name with these labels."""
        samples = (one for family in self.families.values() for one in family.samples)
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())


async def scraped(part: platform.Part) -> Page:
    """What the process tells now."""

    def ask() -> str:
        with urllib.request.urlopen(f"{part.ready['metrics']}/metrics", timeout=20) as answer:
            return str(answer.read().decode())

    page = await asyncio.to_thread(ask)
    return Page({family.name: family for family in text_string_to_metric_families(page)})


@dataclass(slots=True)
class Observed:
    """A control plane and a process of simulated nodes."""

    home: Path
    control: platform.Part
    sim: platform.Part

    def lines(self) -> list[dict[str, Any]]:
        """Everything that both have logged; each line is one JSON object."""
        return logged(self.home / "up-control.log") + logged(self.home / "sim.log")


def logged(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


@contextlib.asynccontextmanager
async def observed(home: Path) -> AsyncIterator[Observed]:
    """Both run while the block does; the scheduler knows the nodes."""
    config = home / "sim.json"
    config.write_text(CONFIG.model_dump_json())
    async with platform.running(home, only="control", options=OBSERVED) as control:
        told = ("--home", str(home), "--nodes", str(NODES), "--config", str(config), "--json")
        argv = ("sim", *told, *OBSERVED)
        sim = await platform.started(argv, home / "sim.log")
        try:
            await asyncio.sleep(0.5)
            yield Observed(home, control, sim)
        finally:
            await sim.stop()
