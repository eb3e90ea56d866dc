"""Creates on a simulated node: from core's order to a journalled record, once for each key.

Orders and records are handled as JSON, not as models: thousands a second pass here.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import orjson

from dsec.bus import operation, subjects
from dsec.bus.errors import DeadlineExceeded, DsecError, InfraError, NoCapacity, NodeLost, Unsupported
from dsec.bus.fencing import LOST
from dsec.bus.handlers import check_reply, result
from dsec.bus.transport import Received
from dsec.plugins.sim import journal as lines
from dsec.plugins.sim.books import Held, applied
from dsec.plugins.sim.journal import packed

if TYPE_CHECKING:
    from dsec.plugins.sim.node import SimNode


class Creates:
    """What one simulated node is asked to create, by core and by batches."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._running: dict[str, asyncio.Future[bytes]] = {}
        self._audit = {"op": "sandbox.create", "subject": subjects.node_create(node.node)}
        self.waiting: set[str] = set()
        """Keys of creates that have not begun to be journalled."""

    def __len__(self) -> int:
        return len(self._running)

    async def create(self, message: Received) -> bytes | None:
        """Core's order; the answer goes to the tenant. A veto gives it back to core."""
        order = orjson.loads(message.data)
        check_reply(message.reply, order["principal"])
        await self._node.opened()
        late = time.time() * 1000 - order["deadline"]
        if late > 0:
            raise DeadlineExceeded(
                f"the deadline passed {late:.0f} ms ago; nothing was done", field="deadline"
            )
        key = f"{order['project']}/create/{order['op']}"
        try:
            record = self._node.books.answer(key) or await self.once(order, key)
        except NoCapacity as reason:
            await self._veto(order, message.reply, reason)
            return None
        except DsecError as error:
            self.note(order, error.code, error.message)
            raise
        self.note(order, "ok")
        return b'{"ok":%b}' % record

    async def once(self, order: dict[str, Any], key: str) -> bytes:
        """The record; those who ask meanwhile wait for the same one."""
        running = self._running.get(key)
        if running is not None:
            return await asyncio.shield(running)
        self._running[key] = running = asyncio.get_running_loop().create_future()
        backend = order["spec"]["backend"]
        tally = self._node.figures.create(
            backend if backend in self._node.config.backends else "unknown", order["project"]
        )
        began = time.perf_counter_ns()
        try:
            record = await self._make(order, key)
        except BaseException as error:
            tally.failed(error.code if isinstance(error, DsecError) else "internal")
            running.set_exception(
                error if isinstance(error, Exception) else InfraError("the node is stopping")
            )
            running.exception()  # seen: the caller gets it here
            raise
        else:
            running.set_result(record)
            return record
        finally:
            tally.took(time.perf_counter_ns() - began)
            del self._running[key]

    async def _make(self, order: dict[str, Any], key: str) -> bytes:
        await self._node.opened()
        spec, now, epoch = order["spec"], time.time(), self._node.lives.epoch
        if spec["backend"] not in self._node.config.backends:
            raise Unsupported(f"backend {spec['backend']!r} is not on this node", field="backend")
        limits = applied(spec["limits"], self._node.config.defaults)
        self._node.books.admit(limits["cpu"] or 0.0, limits["memory"] or 0, len(self._running) - 1)
        delay = self._node.fate.delay("create")
        if delay:
            self.waiting.add(key)
            try:
                await asyncio.sleep(delay)
            finally:
                self.waiting.discard(key)
            await self._node.opened()
        self._node.fate.strike("create")
        body = {
            "v": 1,
            "sandbox": order["sandbox"],
            "project": order["project"],
            "principal": order["principal"],
            "node": self._node.node,
            "epoch": epoch,
            "state": "running",
            "spec": spec,
            "applied": limits,
            "created": int(now * 1000),
            "expires": int((now + spec["ttl"]) * 1000),
            "changed": int(time.time() * 1000),
            "failure": None,
            "reason": "",
        }
        record = packed(body)
        await self._node.journal.append(lines.created(self._node.node, key, record))
        held = Held.of(body, record, now)
        self._node.doom(held, add=True)
        self._node.books.answers[key] = record
        if epoch <= self._node.lives.fenced:
            await self._node.lives.lose(held)
            raise NodeLost(f"{held.id} was lost: {LOST}")
        self._node.publish(held, "created")
        return record

    async def _veto(self, order: dict[str, Any], reply: str, reason: NoCapacity) -> None:
        veto = orjson.dumps({"order": order, "reply": reply, "reason": reason.message})
        left = max(0.1, order["deadline"] / 1000 - time.time())
        answer = await self._node.bus.request(
            subjects.SCHED_VETO, veto, timeout=min(left, 10.0), headers=operation.onward()
        )
        result(answer.data)

    def note(self, order: dict[str, Any], outcome: str, detail: str = "") -> None:
        entry = self._audit | {
            "time": int(time.time() * 1000),
            "principal": order["principal"],
            "target": order["sandbox"],
            "outcome": outcome,
            "detail": detail,
        }
        if trace := operation.trace():
            entry["trace"] = trace
        self._node.appender.put(subjects.audit("edge", "create", order["project"]), orjson.dumps(entry))
