"""Identities, and the broker's word on who may connect with which rights.

    prepared = Iam.prepare(Home(path), nodes=["n-a"])       # first start: keys, credential files
    async with Broker.running(home.broker, auth=prepared.auth) as broker, \\
            Wire.connect(broker.url, prepared.credentials("iam"), "iam") as wire, \\
            Iam.running(wire, Context(home.part("iam"))):
        … now everybody else can connect, each with `prepared.credentials(<owner>)`

Every other connection waits for iam: without it the broker lets nobody in, and `Wire.connect` goes on trying.
`create_principal`, `create_node` and `remove` are the operator's: they work on the home, from any process.
Over the bus (`service`) principals manage projects and principals below their own, as `directory` allows.
A refused connection is audited as `audit.iam.connect.<project or none>`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nkeys

from dsec.bus import ids, subjects
from dsec.bus.audit import Auditor
from dsec.bus.errors import InfraError, Unauthenticated
from dsec.bus.files import write_private
from dsec.bus.handlers import receiving
from dsec.bus.home import Home
from dsec.bus.host import Context
from dsec.bus.nats.appender import Appender
from dsec.bus.nats.broker import BrokerAuth
from dsec.bus.nats.credentials import Credentials, Role, new_seed, public_key
from dsec.bus.projects import ROOT
from dsec.bus.transport import Bus, Received
from dsec.plugins.iam.callout import SUBJECT, Attempt, admission, attempt_in, check, refusal
from dsec.plugins.iam.directory import Directory
from dsec.plugins.iam.ending import Ending
from dsec.plugins.iam.service import Service
from dsec.plugins.iam.store import Identity, Store

log = logging.getLogger(__name__)

DEFAULT_PROJECT: Final = ROOT
DEFAULT_PRINCIPAL: Final = "u-admin"
CONTROL_ROLES: Final = (Role.IAM, Role.CORE, Role.SCHEDULER, Role.JOURNAL, Role.OPERATOR)
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


class Iam:
    """Answers the broker's auth callouts. Any number run in one queue group over the same home."""

    def __init__(self, bus: Bus, home: Path, auditor: Auditor) -> None:
        self._bus = bus
        self._store = _store(home)
        self._issuer = _issuer(home)
        self._auditor = auditor
        self._second, self._audits = 0, 0

    @classmethod
    def prepare(cls, home: Home, *, nodes: Iterable[str] = ()) -> Prepared:
        """Make what is missing: issuer key, credentials of every role, of `nodes`, and of `u-admin`.

        Repeatable; credentials that are good stay as they are. Raises OSError, BadId, InfraError.
        """
        wanted = [Credentials.new(role) for role in CONTROL_ROLES]
        wanted += [Credentials.new(Role.EDGE, node=ids.check("node", node)) for node in nodes]
        wanted += [Credentials.new(Role.TENANT, project=DEFAULT_PROJECT, principal=DEFAULT_PRINCIPAL)]
        for fresh in wanted:
            _ensure(home, fresh)
        iam = Credentials.load(_file(home, Role.IAM.value))
        return Prepared(BrokerAuth(public_key(_issuer(home.part("iam"))), iam.public), home.credentials)

    @classmethod
    def create_principal(cls, home: Home, project: str, name: str) -> Credentials:
        """A new principal `u-…` of project `p-…` (which exists by having one), also saved to its file.

        Raises BadId, Conflict (the name is taken, in whichever project).
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
        """Forget a principal `u-…`, node `n-…` or driver `d-…`; refused at its next connect. Raises BadId."""
        ids.check({"u-": "principal", "d-": "plugin"}.get(owner[:2], "node"), owner)
        _store(home.part("iam")).remove(owner)
        _file(home, owner).unlink(missing_ok=True)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, bus: Bus, context: Context) -> AsyncIterator[None]:
        """Answers while the block runs; `context.home` is `Home.part("iam")` after `prepare`."""
        async with Appender.running(bus) as appender, Ending.running(bus) as ending:
            auditor = Auditor(appender, "iam")
            iam = cls(bus, context.home, auditor)
            service = Service(bus, Directory(iam._store), auditor, ending)
            async with (
                receiving(bus, SUBJECT, iam.asked, queue="iam", concurrency=256),
                service.serving(),
            ):
                yield

    async def asked(self, message: Received) -> None:
        """Answer one callout; what no broker signed gets no answer."""
        try:
            attempt = attempt_in(message.data)
        except Unauthenticated as error:
            log.warning("callout ignored: %s", error)
            return
        known = await asyncio.to_thread(self._store.find, attempt.public)
        try:
            answer = admission(attempt, check(attempt, known), self._issuer)
        except Unauthenticated as error:
            self._audit(attempt, known, error)
            answer = refusal(attempt, error.message, self._issuer)
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


def _store(home: Path) -> Store:
    return Store(home / "identities.sqlite3")


def _file(home: Home, owner: str) -> Path:
    return home.credentials / f"{owner}.json"


def _enrol(home: Home, fresh: Credentials) -> Credentials:
    _store(home.part("iam")).add(fresh)
    fresh.save(_file(home, fresh.owner))
    return fresh


def _ensure(home: Home, fresh: Credentials) -> None:
    """The name has credentials that iam knows; `fresh` ones only when there are no good ones."""
    store, file = _store(home.part("iam")), _file(home, fresh.owner)
    if not (file.exists() and store.find(Credentials.load(file).public)):
        store.replace(fresh)
        fresh.save(file)


def _issuer(home: Path) -> str:
    """The seed that signs iam's answers, made at first use."""
    path = home / "issuer.json"
    if not path.exists():
        write_private(path, json.dumps({"seed": new_seed(nkeys.PREFIX_BYTE_ACCOUNT)}) + "\n")
    seed: str = json.loads(path.read_text(encoding="utf-8"))["seed"]
    return seed
