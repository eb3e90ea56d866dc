"""What one simulated node holds: its sandboxes, the answers it gave, and when something is due. No I/O.

A record is kept as the JSON that was answered; nodes hold hundreds of thousands of them.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import orjson

from dsec.bus.errors import NoCapacity, NodeLost, NoSuchSandbox
from dsec.bus.messages import State
from dsec.bus.spec import Limits
from dsec.plugins.sim.config import SimConfig
from dsec.plugins.sim.journal import Past, packed


@dataclass(slots=True)
class Held:
    """A live or failed sandbox. `dies` and `used` are unix seconds; `execs` maps ids to numbers."""

    id: str
    project: str
    state: State
    record: bytes
    epoch: int
    cpu: float
    memory: int
    expires: float
    idle: float | None
    used: float
    job: str | None = None
    dies: float | None = None
    execs: dict[str, int] | None = None
    numbers: int = 0

    @classmethod
    def of(cls, body: dict[str, Any], record: bytes, now: float) -> Held:
        """From a record as a dictionary and as the same JSON."""
        return cls(
            id=body["sandbox"],
            project=body["project"],
            state=State(body["state"]),
            record=record,
            epoch=body["epoch"],
            cpu=body["applied"]["cpu"] or 0.0,
            memory=body["applied"]["memory"] or 0,
            expires=body["expires"] / 1000,
            idle=body["spec"].get("idle_ttl"),
            used=now,
            job=body["spec"].get("job"),
        )

    def begin(self, exec_: str) -> int:
        """A command of it begins; its number."""
        if self.execs is None:
            self.execs = {}
        self.numbers += 1
        self.execs[exec_] = self.numbers
        return self.numbers

    def number(self, exec_: str) -> int | None:
        """The number of a command that has begun."""
        return None if self.execs is None else self.execs.get(exec_)

    def due(self) -> float:
        """When something happens to it by itself, unless it is used or changed meanwhile."""
        idle = [] if self.idle is None else [self.used + self.idle]
        death = [] if self.dies is None or self.state is State.FAILED else [self.dies]
        return min((self.expires, *idle, *death))

    def why_over(self, now: float) -> str | None:
        """Why it is to be destroyed now, if it is."""
        if now >= self.expires:
            return "its time to live is over"
        if self.idle is not None and now - self.used >= self.idle:
            return f"it was idle for {self.idle:g} s"
        return None


class Books:
    """The tables of one node; ids of other projects look as if they did not exist."""

    def __init__(self, config: SimConfig, past: Past) -> None:
        self.config = config
        self.answers = past.answers
        self.gone = past.gone
        self.lost = past.lost
        self.table: dict[str, Held] = {}
        self.cpu, self.memory = 0.0, 0
        self._due: list[tuple[float, str]] = []

    def recover(self, past: Past, *, fenced: int, epoch: int, now: float) -> None:
        """Take over what a former process left: into life `epoch`, unless its life was declared failed."""
        for record in past.records.values():
            body = orjson.loads(record)
            if body["epoch"] > fenced:
                body["epoch"] = epoch
            held = Held.of(body, packed(body), now)
            execs = past.execs.get(held.id)
            if execs is not None:
                held.execs, held.numbers = execs, max(execs.values(), default=0)
            self.add(held)

    def answer(self, key: str) -> bytes | None:
        """What was answered to a create of this key, unless the sandbox is lost: then it may come again."""
        record = self.answers.get(key)
        if record is not None and self.lost and orjson.loads(record)["sandbox"] in self.lost:
            del self.answers[key]
            return None
        return record

    def admit(self, cpu: float, memory: int, coming: int) -> None:
        """Raises NoCapacity, which becomes a veto; `coming` sandboxes are being created."""
        if len(self.table) + coming >= self.config.sandboxes:
            raise NoCapacity(f"the node has its {self.config.sandboxes} sandboxes")
        if self.memory + memory > 8 * self.config.memory or self.cpu + cpu > 64 * self.config.cpu:
            raise NoCapacity("what the node has is promised")

    def add(self, held: Held) -> None:
        self.table[held.id] = held
        self.cpu += held.cpu
        self.memory += held.memory
        heapq.heappush(self._due, (held.due(), held.id))

    def remove(self, held: Held) -> None:
        self._drop(held, self.gone)

    def lose(self, held: Held) -> None:
        """It was declared failed while the node was away: those who ask hear so."""
        self._drop(held, self.lost)

    def _drop(self, held: Held, where: dict[str, str]) -> None:
        if self.table.pop(held.id, None) is not None:
            self.cpu -= held.cpu
            self.memory -= held.memory
        where[held.id] = held.project

    def get(self, sandbox: str, project: str, now: float) -> Held:
        """The project's sandbox, now in use. Raises NoSuchSandbox, NodeLost."""
        if self.lost.get(sandbox) == project:
            raise NodeLost(f"{sandbox} was lost: its node was away and was declared failed")
        held = self.table.get(sandbox)
        if held is None or held.project != project:
            raise NoSuchSandbox(f"no sandbox {sandbox} in this project", field="sandbox")
        held.used = now
        return held

    def again(self, held: Held) -> None:
        """Its time to live or its life changed: look at it again."""
        heapq.heappush(self._due, (held.due(), held.id))

    def take_due(self, now: float) -> list[Held]:
        """Sandboxes to which something happens now."""
        found: dict[str, Held] = {}
        while self._due and self._due[0][0] <= now:
            _, sandbox = heapq.heappop(self._due)
            held = self.table.get(sandbox)
            if held is None:
                continue
            if held.due() <= now:
                found[sandbox] = held
            else:
                self.again(held)
        return list(found.values())


def applied(asked: dict[str, Any], defaults: Limits) -> dict[str, Any]:
    """The limits that were asked for over the node's defaults; a simulated node enforces them all."""
    return defaults.model_dump() | {name: value for name, value in asked.items() if value is not None}
