"""The node's agent: admission, lifecycle, commands, files, recovery, reaping, heartbeats.

"Node" is the machine, "edge" the program. When the edge ends, its sandboxes and their commands go on and the
next edge with the same home takes them over, unless the context says `drain`: then they are destroyed first.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from dsec.bus.errors import SpecError
from dsec.bus.host import Context
from dsec.bus.nats.appender import Appender
from dsec.bus.nats.directget import DirectGet
from dsec.bus.registrar import Registrar
from dsec.bus.transport import Bus
from dsec.plugins.edge.admission import Capacity
from dsec.plugins.edge.channels import Channels
from dsec.plugins.edge.clock import watch_clock
from dsec.plugins.edge.create import Creator
from dsec.plugins.edge.descriptors import raise_limit
from dsec.plugins.edge.ending import Ending
from dsec.plugins.edge.fencing import DEFAULT, Fencing, Patience
from dsec.plugins.edge.figures import figures_of, frozen, samples
from dsec.plugins.edge.heartbeat import appear, beat
from dsec.plugins.edge.jobs import EdgeJobs
from dsec.plugins.edge.journal import Journal
from dsec.plugins.edge.node import Node, spools_for
from dsec.plugins.edge.pipes import Scratch
from dsec.plugins.edge.reaper import reap, watch
from dsec.plugins.edge.recovery import Recovery
from dsec.plugins.edge.remote import Backends
from dsec.plugins.edge.sandboxes import Sandboxes
from dsec.plugins.edge.service import Service
from dsec.plugins.edge.stopping import Stopping
from dsec.plugins.edge.tasks import Tasks

__all__ = ["Edge"]


class Edge:
    """The plugin `edge`; `context` needs a node, drivers and images."""

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, bus: Bus, context: Context, *, patience: Patience = DEFAULT
    ) -> AsyncIterator[None]:
        """Serve while the block runs; sandboxes live on after it, unless `context.drain`.

        Raises SpecError for an incomplete context, DiskFull, BrokerDown, InfraError.
        """
        raise_limit()
        async with contextlib.AsyncExitStack() as stack:
            reader = await stack.enter_async_context(DirectGet.running(bus))
            node = await _node(bus, context, reader, stack)
            tell, why = partial(samples, node), partial(frozen, node)
            stack.enter_context(figures_of(node).telling(tell, check=why))
            ending = Ending(node)
            fencing = Fencing(node, ending, patience)
            await fencing.join()
            channels = Channels(node, ending)
            recovery = Recovery(node, ending, channels, reader)
            await recovery.run()
            for driver in list(node.drivers.values()):
                node.tasks.spawn(watch(driver, ending), "watch")
            node.tasks.spawn(reap(node, ending), "reaper")
            await stack.enter_async_context(Backends.running(node, ending, recovery))
            if context.drain:
                stack.push_async_callback(ending.drain)
            creator = Creator(node, channels)
            await stack.enter_async_context(
                Service(node, creator, Stopping(node, channels), ending).serving()
            )
            await stack.enter_async_context(EdgeJobs(node, creator, ending).serving(bus))
            await appear(node)
            node.tasks.spawn(beat(node), "heartbeat")
            node.tasks.spawn(fencing.keep(), "fencing")
            node.tasks.spawn(watch_clock(node), "clock")
            yield


async def _node(bus: Bus, context: Context, reader: DirectGet, stack: contextlib.AsyncExitStack) -> Node:
    if not (context.node and context.drivers is not None and context.images is not None):
        raise SpecError("an edge needs a node id, drivers and images", field="context")
    home, spools = context.home, spools_for(context.home)
    for directory in (home, spools):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    stack.callback(_remove_if_empty, spools)
    journal = await stack.enter_async_context(Journal.opened(home / "journal.db"))
    appender = await stack.enter_async_context(Appender.running(bus))
    registrar = await stack.enter_async_context(Registrar.running(appender, reader))
    sandboxes = Sandboxes(journal, appender, registrar)
    stack.push_async_callback(sandboxes.leave)
    return Node(
        name=context.node,
        bus=bus,
        home=home,
        spools=spools,
        drivers=dict(context.drivers),
        images=context.images,
        journal=journal,
        appender=appender,
        tasks=await stack.enter_async_context(Tasks.running()),
        scratch=stack.enter_context(Scratch.opened()),
        sandboxes=sandboxes,
        capacity=machine(),
    )


def machine() -> Capacity:
    """What this machine has."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Capacity(cpu=float(len(os.sched_getaffinity(0))), memory=pages * size)


def _remove_if_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()
