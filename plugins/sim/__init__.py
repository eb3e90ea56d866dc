"""A simulated backend and its nodes: a platform of any size on one machine, without root.

A simulated node is a member like any other. It has a credential of its own with a node's rights, sends
heartbeats, takes core's orders, journals them on disk before it acknowledges, registers, tells events and
audits. Only the inside is simulated: what a command prints, how long things take, what fails and what dies
come from a `SimConfig` (JSON; unknown fields are refused). Any image name is taken and none is mounted.

Beside a running control plane:

    dsec up --home DIR --only control
    dsec sim --home DIR --nodes 160 --config sim.json

In a test of your own, with a broker and credentials at hand:

    async with fleet(url, {"n-sim-000": credentials}, home, SimConfig(seed=7)) as nodes: …

Sandboxes survive the end of the process, `kill -9` included: the next one on the same home has the same
records again in its next life, unless the watcher has declared them failed meanwhile. See docs/sim.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from dsec.bus.host import Context
from dsec.bus.transport import Bus
from dsec.plugins.sim.config import Deaths, Delay, Fault, Outcome, SimConfig
from dsec.plugins.sim.fleet import fleet, names
from dsec.plugins.sim.journal import Journal
from dsec.plugins.sim.node import SimNode

__all__ = ["Deaths", "Delay", "Fault", "Journal", "Outcome", "Sim", "SimConfig", "SimNode", "fleet"]


class Sim:
    """The plugin `sim`."""

    names = staticmethod(names)
    fleet = staticmethod(fleet)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus, context: Context) -> AsyncIterator[None]:
        """One node, `context.node`, over its own connection; configured by `sim.json` in its home."""
        path = context.home / "sim.json"
        config = SimConfig.load(path) if path.exists() else SimConfig()
        async with (
            Journal.opened(context.home / "journal.jsonl") as journal,
            SimNode.running(bus, context.node, journal, config),
        ):
            yield

    @staticmethod
    def config(path: Path | None) -> SimConfig:
        """The configuration in a file, or the default. Raises SpecError naming the field."""
        return SimConfig() if path is None else SimConfig.load(path)
