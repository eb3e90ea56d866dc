"""The operator's word on identities, noted in a home: `parts/iam/pending/`, one file each, no secret.

It can be given before the broker runs, by whoever may write into the home. The iam of that home takes it in
at its start, once a second, and before it judges a connection, which obeys every order noted before.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, assert_never

import orjson

from dsec.bus.errors import Conflict, GoneError
from dsec.bus.files import write_private
from dsec.bus.nats.credentials import Credentials
from dsec.plugins.iam.directory import rotated
from dsec.plugins.iam.entries import Member
from dsec.plugins.iam.store import MOST_CHANGES, Store
from dsec.plugins.iam.tables import Tables

log = logging.getLogger(__name__)

EVERY: Final = 1.0
AUDITED: Final = frozenset(("add", "rotate", "remove"))
"""What an operator asked for; the others are the start of an installation."""
Verb = Literal["add", "ensure", "replace", "rotate", "remove"]


@dataclass(frozen=True, slots=True)
class Order:
    """`add` a new name; `ensure` that it exists; `replace` its key, or add it; `rotate` its key, with `grace`
    seconds for the former one; `remove` it."""

    verb: Verb
    member: Member
    grace: float = 0.0

    @classmethod
    def of(cls, verb: Verb, who: Credentials, *, grace: float = 0.0) -> Order:
        return cls(verb, Member.of(who, created=time.time()), grace)

    @classmethod
    def removing(cls, owner: str) -> Order:
        return cls("remove", Member(owner, "", ""))

    def carry_out(self, tables: Tables) -> None:
        """Repeatable. Raises Conflict (the name or the key is taken), GoneError (nothing to rotate)."""
        known = tables.member(self.member.owner)
        same = known is not None and known.public == self.member.public
        match self.verb:
            case "add" if not same:
                tables.add_member(self.member)
            case "ensure" if known is None:
                tables.put_member(self.member)
            case "replace" if not same:
                tables.put_member(self.member)
            case "rotate" if known is None:
                raise GoneError(f"there is no {self.member.owner}")
            case "rotate" if known is not None and not same:
                tables.put_member(rotated(known, self.member.public, grace=self.grace))
            case "remove":
                tables.remove([self.member.owner])
            case "add" | "ensure" | "replace" | "rotate":
                pass
            case _:
                assert_never(self.verb)

    def encoded(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def decoded(cls, text: bytes) -> Order:
        fields: dict[str, Any] = orjson.loads(text)
        return cls(fields["verb"], Member.decoded(orjson.dumps(fields["member"])), fields["grace"])


class Pending:
    """The orders of one home; `directory` is `Home.part("iam")`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "pending"

    def note(self, order: Order) -> None:
        """Raises OSError, DiskFull."""
        name = f"{time.time_ns():020d}-{order.member.owner}.json"
        write_private(self._directory / name, order.encoded())

    def waiting(self) -> list[Path]:
        """Orders that nobody has taken in yet, in the order of their being given."""
        try:
            return sorted(
                Path(one.path) for one in os.scandir(self._directory) if not one.name.startswith(".")
            )
        except FileNotFoundError:
            return []

    async def take_in(self, store: Store) -> list[Order]:
        """Carry out what waits; what cannot be done is logged and forgotten. What was done."""
        if not self.waiting():
            return []
        done: list[Order] = []
        async with self._alone():
            while paths := self.waiting()[:MOST_CHANGES]:
                orders = [Order.decoded(path.read_bytes()) for path in paths]
                done += await _carried_out(store, orders)
                for path in paths:
                    path.unlink(missing_ok=True)
        return done

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Of all iam over this home: an order that is done must not be done again after the next one."""
        lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            while not _locked(lock):  # noqa: ASYNC110 - a lock of files tells nobody that it is free
                await asyncio.sleep(0.01)
            yield
        finally:
            os.close(lock)


async def _carried_out(store: Store, orders: list[Order]) -> list[Order]:
    """All at once, or, if one of them cannot be done, half after half without it."""

    def work(tables: Tables) -> None:
        for order in orders:
            order.carry_out(tables)

    try:
        await store.change(work)
    except (Conflict, GoneError) as error:
        if half := len(orders) // 2:
            first = await _carried_out(store, orders[:half])
            return first + await _carried_out(store, orders[half:])
        log.error("%s %s: %s", orders[0].verb, orders[0].member.owner, error.message)  # noqa: TRY400 - told whole
        return []
    return orders


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
