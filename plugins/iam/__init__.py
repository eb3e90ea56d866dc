"""Identities, and the broker's word on who may connect with which rights.

    prepared = Iam.prepare(Home(path), nodes=["n-a"])       # first start: keys, credential files
    async with Broker.running(home.broker, auth=prepared.auth) as broker, \\
            Wire.connect(broker.url, prepared.credentials("iam"), "iam") as wire, \\
            Iam.running(wire, Context(home.part("iam"))):
        … now everybody else can connect, each with `prepared.credentials(<owner>)`

Every other connection waits for iam: without it the broker lets nobody in, and `Wire.connect` goes on trying.
Who may connect is in a bucket of the broker (`store`), so any number of iam serve, on any machines that have
the same iam credentials and issuer key. `create_principal`, `create_node` and `remove` are the operator's:
they leave word in the home, from any process and with the platform running or not (`pending`). Over the bus
(`service`) principals manage projects and principals below their own, as `directory` allows.
A refused connection is audited as `audit.iam.connect.<project or none>`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from dsec.bus import ids, subjects
from dsec.bus.audit import Auditor
from dsec.bus.errors import Conflict, DsecError, InfraError, Unauthenticated
from dsec.bus.handlers import receiving
from dsec.bus.home import Home
from dsec.bus.host import Context
from dsec.bus.nats.appender import Appender
from dsec.bus.nats.broker import BrokerAuth
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.wire import AUTH_TIMEOUT
from dsec.bus.projects import ROOT
from dsec.bus.transport import Bus, Received
from dsec.plugins.iam import bundle, rotation
from dsec.plugins.iam.callout import SUBJECT, Attempt, admission, attempt_in, check, refusal
from dsec.plugins.iam.ending import Ending
from dsec.plugins.iam.entries import Identity
from dsec.plugins.iam.former import take_over
from dsec.plugins.iam.issuer import Issuer
from dsec.plugins.iam.pending import AUDITED, EVERY, Order, Pending
from dsec.plugins.iam.service import Service
from dsec.plugins.iam.store import Store

log = logging.getLogger(__name__)

DEFAULT_PROJECT: Final = ROOT
DEFAULT_PRINCIPAL: Final = "u-admin"
CONTROL_ROLES: Final = (Role.IAM, Role.CORE, Role.SCHEDULER, Role.JOURNAL, Role.OPERATOR)
JUDGED_WITHIN: Final = 0.8 * AUTH_TIMEOUT
"""Seconds; whoever hears nothing for longer has met an absent iam, and tries again."""
AUDITS_PER_SECOND: Final = 50
"""Refusals audited each second; a client that hammers at the door must not fill the AUDIT stream."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the rest of the platform needs of iam."""

    auth: BrokerAuth
    directory: Path

    def path(self, owner: str) -> Path:
        """The credential file of a role (`core`), a node (`n-…`) or a principal (`u-…`)."""
        return self.directory / f"{owner}.json"

    def credentials(self, owner: str) -> Credentials:
        """Raises Unauthenticated when there are none."""
        return Credentials.load(self.path(owner))


class Identities(Protocol):
    """What a callout asks."""

    async def find(self, public: str) -> Identity | None:
        """Who has this public nkey now. Raises InfraError while nobody can know."""
        ...


class Iam:
    """Answers the broker's auth callouts. Any number run in one queue group."""

    def __init__(self, bus: Bus, identities: Identities, issuer: Issuer, auditor: Auditor) -> None:
        self._bus = bus
        self._identities = identities
        self._issuer = issuer
        self._auditor = auditor
        self._second, self._audits = 0, 0

    @classmethod
    def prepare(cls, home: Home, *, nodes: Iterable[str] = ()) -> Prepared:
        """Make what is missing: issuer key, credentials of every role, of `nodes`, and of `u-admin` (not in a
        home that joined an installation: the first one has it).

        Repeatable; credentials that are there stay as they are. Raises OSError, BadId, InfraError.
        """
        wanted = [Credentials.new(role) for role in CONTROL_ROLES]
        wanted += [Credentials.new(Role.EDGE, node=ids.check("node", node)) for node in nodes]
        if not bundle.joined(home):
            wanted += [Credentials.new(Role.TENANT, project=DEFAULT_PROJECT, principal=DEFAULT_PRINCIPAL)]
        for fresh in wanted:
            _ensure(home, fresh)
        return Prepared(rotation.present(home), home.credentials)

    @classmethod
    def settle(cls, home: Home) -> None:
        """Finish a rotation of the issuer or of iam itself; to be called while the broker is down."""
        rotation.settle(home)

    @classmethod
    def create_principal(cls, home: Home, project: str, name: str) -> Credentials:
        """A new principal `u-…` of project `p-…` (which exists by having one), also saved to its file.

        Raises BadId, Conflict (the home has credentials of that name; that somebody else has the name, iam
        finds out, and logs it).
        """
        ids.check("project", project)
        return _enrol(
            home, Credentials.new(Role.TENANT, project=project, principal=ids.check("principal", name))
        )

    @classmethod
    def create_node(cls, home: Home, node: str) -> Credentials:
        """Credentials of a new node `n-…`, also saved to their file. Raises BadId, Conflict."""
        return _enrol(home, Credentials.new(Role.EDGE, node=ids.check("node", node)))

    @classmethod
    def create_plugin(cls, home: Home, node: str, driver: str) -> Credentials:
        """Credentials of a driver of `node` that runs in a process of its own, also saved to their file.

        Raises BadId, Conflict.
        """
        owner = ids.driver_on(node, driver)
        return _enrol(home, Credentials.new(Role.DRIVER, node=node, principal=owner))

    @classmethod
    def remove(cls, home: Home, owner: str) -> None:
        """Forget a principal `u-…`, node `n-…` or driver `d-…`; refused at its next connect, and its
        connections end. Raises BadId."""
        ids.check({"u-": "principal", "d-": "plugin"}.get(owner[:2], "node"), owner)
        Pending(home.part("iam")).note(Order.removing(owner))
        _file(home, owner).unlink(missing_ok=True)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus, context: Context) -> AsyncIterator[None]:
        """Answers while the block runs; `context.home` is `Home.part("iam")` after `prepare`."""
        issuer, pending = Issuer(context.home), Pending(context.home)
        async with (
            Store.running(bus) as store,
            Appender.running(bus) as appender,
            Ending.running(bus) as ending,
        ):
            auditor = Auditor(appender, "iam")
            await take_over(context.home, issuer.public, store)
            orders = _Orders(pending, store, ending, auditor)
            await orders.obey()
            async with (
                cls(bus, orders, issuer, auditor).answering(),
                Service(bus, store, auditor, ending).serving(),
                orders.watched(),
            ):
                yield

    @contextlib.asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Callouts are answered while the block runs."""
        async with receiving(self._bus, SUBJECT, self.asked, queue="iam", concurrency=256):
            yield

    async def asked(self, message: Received) -> None:
        """Answer one callout; what no broker signed gets no answer, nor does what cannot be known now."""
        try:
            attempt = attempt_in(message.data)
            async with asyncio.timeout(JUDGED_WITHIN):
                known = await self._identities.find(attempt.public)
        except Unauthenticated as error:
            log.warning("callout ignored: %s", error)
            return
        except (InfraError, TimeoutError) as error:
            log.warning("a connection cannot be judged now: %s", error)
            return
        seed = self._issuer.seed
        try:
            answer = admission(attempt, check(attempt, known), seed)
        except Unauthenticated as error:
            self._audit(attempt, known, error)
            answer = refusal(attempt, error.message, seed)
        with contextlib.suppress(InfraError):  # the broker is gone, and the connection with it
            await self._bus.publish(message.reply, answer)

    def _audit(self, attempt: Attempt, known: Identity | None, error: Unauthenticated) -> None:
        second = int(time.monotonic())
        self._audits = self._audits + 1 if second == self._second else 1
        self._second = second
        if self._audits > AUDITS_PER_SECOND:
            return
        who = known or Identity(Role.TENANT)
        address = subjects.Address("iam", "connect", who.project or "none", who.owner)
        detail = f"{error.message}; {attempt.name[:100]!r} from {attempt.host}"
        self._auditor.note(address, SUBJECT, outcome=error.code, target=attempt.public[:60], detail=detail)


class _Orders:
    """The bucket as it is once the operator's orders in this home are carried out."""

    def __init__(self, pending: Pending, store: Store, ending: Ending, auditor: Auditor) -> None:
        self._pending = pending
        self._store = store
        self._ending = ending
        self._auditor = auditor

    async def find(self, public: str) -> Identity | None:
        await self.obey()
        return await self._store.find(public)

    async def obey(self) -> None:
        done = await self._pending.take_in(self._store)
        given = [order for order in done if order.verb in AUDITED]
        for order in given:
            address = subjects.Address("iam", order.verb, order.member.project or "none", "operator")
            self._auditor.note(address, "pending", outcome="ok", target=order.member.owner)
        self._ending.end([order.member.owner for order in given if order.verb != "add"])

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Orders are carried out soon, whether or not somebody connects."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            try:
                await self.obey()
            except (DsecError, OSError) as error:
                log.warning("orders of the operator wait: %s", error)


def _file(home: Home, owner: str) -> Path:
    return home.credentials / f"{owner}.json"


def _enrol(home: Home, fresh: Credentials) -> Credentials:
    if _file(home, fresh.owner).exists():
        raise Conflict(f"{fresh.owner} exists already: names are unique in an installation")
    Pending(home.part("iam")).note(Order.of("add", fresh))
    fresh.save(_file(home, fresh.owner))
    return fresh


def _ensure(home: Home, fresh: Credentials) -> None:
    """The name has credentials that iam knows; `fresh` ones only when there are none.

    iam's own key is known to the broker itself. The order comes first: one without its credentials is
    overruled by the next start's.
    """
    file = _file(home, fresh.owner)
    known = Credentials.load(file) if file.exists() else None
    if fresh.role is not Role.IAM:
        order = Order.of("ensure", known) if known else Order.of("replace", fresh)
        Pending(home.part("iam")).note(order)
    if known is None:
        fresh.save(file)
