"""Creating a sandbox: a chain of stages, each with its undo.

admit -> intent in the journal -> rootfs -> driver (cgroup, guard, network, start) -> door -> first answer ->
journal. On any failure the undos run in reverse, so that nothing is left. An operation that is repeated
while it runs waits for the same result; afterwards it finds the stored answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from functools import partial

from dsec.bus.chronus.guest import Guest
from dsec.bus.driver import Driver, Order
from dsec.bus.errors import DsecError, InfraError
from dsec.bus.handlers import in_time, ok
from dsec.bus.messages import NodeCreate, Record, State
from dsec.bus.spec import Limits
from dsec.plugins.edge import layers
from dsec.plugins.edge.admission import admit, applied, load
from dsec.plugins.edge.channels import Channels
from dsec.plugins.edge.figures import figures_of
from dsec.plugins.edge.node import Node
from dsec.plugins.edge.remote import refuse_away
from dsec.plugins.edge.undo import Undo, undoing

log = logging.getLogger(__name__)
AT_ONCE = 16
"""Creates of one backend in their stages; more only makes each slower."""


class Creator:
    """Creates sandboxes on one node."""

    def __init__(self, node: Node, channels: Channels) -> None:
        self._node = node
        self._channels = channels
        self._staged: set[str] = set()
        self._gates: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(AT_ONCE))

    async def create(self, order: NodeCreate) -> bytes:
        """The answer `{"ok": Record}`: its sandbox is on disk in the journal, and its inside has answered.

        Raises NoCapacity (a veto, nothing was done), Unsupported, NoSuchImage, DiskFull, MissingTool,
        LimitError, AgentCrippled, InfraError.
        """
        node, key = self._node, f"{order.project}/create/{order.op}"
        running = node.creating.get(key)
        if running is None:
            running = node.tasks.spawn(self._once(order, key), f"create of {order.sandbox}")
            if running is None:
                raise InfraError("the node is stopping")
            node.creating[key] = running
            running.add_done_callback(lambda _: node.creating.pop(key, None))
        answer: bytes = await asyncio.shield(running)
        return answer

    def abandon(self, project: str, op: str) -> bool:
        """Whether the create is under way and in no stage yet: then it is cancelled, with nothing left."""
        key = f"{project}/create/{op}"
        running = self._node.creating.get(key)
        return running is not None and key not in self._staged and running.cancel()

    async def _once(self, order: NodeCreate, key: str) -> bytes:
        node = self._node
        answered = await node.journal.answered(key)
        if answered is not None:
            return answered
        backend = order.spec.backend if order.spec.backend in node.drivers else "unknown"
        tally, began = figures_of(node).create(backend, order.project), time.perf_counter_ns()
        try:
            return await self._admitted(order, key)
        except DsecError as error:
            tally.failed(error.code)
            log.debug("%s is not created: %s", order.sandbox, error)
            raise
        finally:
            tally.took(time.perf_counter_ns() - began)

    async def _admitted(self, order: NodeCreate, key: str) -> bytes:
        node, epoch = self._node, self._node.journal.epoch
        refuse_away(node, order.spec.backend)
        limits = applied(order.spec, node.backends())
        admit(
            limits,
            now=load(node.sandboxes.promised()),
            capacity=node.capacity,
            disk_free=node.disk_free(),
            draining=node.draining,
        )
        node.sandboxes.reserve(order.sandbox, limits)
        try:
            async with self._gates[order.spec.backend]:
                in_time(order)
                self._staged.add(key)
                return await self._stages(order, limits, key, epoch)
        finally:
            self._staged.discard(key)
            node.sandboxes.unreserve(order.sandbox)

    async def _stages(self, order: NodeCreate, limits: Limits, key: str, epoch: int) -> bytes:
        node, sandbox = self._node, order.sandbox
        driver = node.drivers[order.spec.backend]
        async with undoing() as undo:
            await node.journal.intend(sandbox, order.spec.backend)
            undo.later("the intent", partial(node.journal.retract, sandbox, key))
            node.keep_secrets(sandbox, order.secrets)
            undo.later("the directories", partial(_forget, node, sandbox))
            undo.later("the rootfs", partial(node.images.release, sandbox))
            image = await layers.resolve(node.images, order.project, order.spec.image)
            rootfs = await node.images.compose(sandbox, image)
            undo.later("the inside", partial(driver.destroy, sandbox))
            handle = await driver.create(Order(sandbox, order.spec, limits), rootfs)
            guest = await self._first_answer(driver, sandbox, undo)
            record = self.record(order, limits, epoch)
            held = node.hold(record, handle, guest)
            undo.later("its files", held.leave)
            answer = ok(record)
            await node.journal.live(record, handle, key, answer)
            node.sandboxes.add(held)
            undo.keep()
        self._channels.watch(held)
        node.sandboxes.publish(record, "created")
        log.debug("%s is created", sandbox)
        return answer

    async def _first_answer(self, driver: Driver, sandbox: str, undo: Undo) -> Guest:
        guest = await Guest.connect(await driver.channel(sandbox))

        async def close() -> None:
            guest.close()

        undo.later("the channel", close)
        return guest

    def record(self, order: NodeCreate, limits: Limits, epoch: int) -> Record:
        """`epoch` is that of the start: declared failed meanwhile, it is lost like all of that life."""
        now = int(time.time() * 1000)
        return Record(
            sandbox=order.sandbox,
            project=order.project,
            principal=order.principal,
            node=self._node.name,
            epoch=epoch,
            state=State.RUNNING,
            spec=order.spec,
            applied=limits,
            created=now,
            expires=now + int(order.spec.ttl * 1000),
        )


async def _forget(node: Node, sandbox: str) -> None:
    node.forget(sandbox)
