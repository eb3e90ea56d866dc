"""Where the ledgers of limited projects are: entries of the bucket `quota`, changed by compare-and-set."""

from __future__ import annotations

from typing import Final

import orjson

from dsec.bus import subjects
from dsec.bus.core.admission import Amount, Lease, Ledger
from dsec.bus.errors import InfraError
from dsec.bus.nats.directget import DirectGet, answer_of, ask
from dsec.bus.transport import Bus

_STREAM: Final = f"KV_{subjects.QUOTA_BUCKET}"
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_WRONG_REVISION: Final = {10071, 10164}
"""JetStream's error codes for a lost compare-and-set."""


class Ledgers:
    """Methods raise BrokerDown and DeadlineExceeded; each may be repeated."""

    def __init__(self, bus: Bus, reader: DirectGet) -> None:
        self._bus = bus
        self._reader = reader

    async def read(self, project: str) -> tuple[Ledger, int]:
        """The project's ledger and its revision; an empty one of revision 0 when there is none."""
        stored = await self._reader.newest(_STREAM, _subject(project))
        return (ledger_in(stored.data), stored.sequence) if stored else (Ledger(), 0)

    async def write(self, project: str, ledger: Ledger, revision: int) -> bool:
        """False when the ledger is not that of `revision` any more.

        A write repeated over a broken connection may be told as False and have been done: read again.
        """
        headers = {_EXPECTED: str(revision)}
        body = answer_of(await ask(self._bus, _subject(project), ledger_data(ledger), headers))
        error = body.get("error")
        if error is None or error.get("err_code") in _WRONG_REVISION:
            return error is None
        raise InfraError(f"the broker refused the ledger of {project}: {error.get('description')}")


def ledger_data(ledger: Ledger) -> bytes:
    """JSON: a lease is `[sandboxes, thousandths of a core, bytes, until, fresh, since]`."""
    leases = {
        core: [*amount_data(lease.held), lease.until, lease.fresh, lease.since]
        for core, lease in ledger.leases.items()
    }
    body = {"leases": leases, "projects": sorted(ledger.projects), "tokens": ledger.tokens, "at": ledger.at}
    return orjson.dumps(body)


def ledger_in(data: bytes) -> Ledger:
    """What `ledger_data` wrote; of no data an empty one."""
    if not data:
        return Ledger()
    body = orjson.loads(data)
    leases = {core: Lease(Amount(*told[:3]), *told[3:]) for core, told in body["leases"].items()}
    return Ledger(leases, frozenset(body["projects"]), body["tokens"], body["at"])


def amount_data(amount: Amount) -> list[int]:
    """What `Amount(*…)` reads."""
    return [amount.sandboxes, amount.cpu, amount.memory]


def _subject(project: str) -> str:
    return subjects.kv(subjects.QUOTA_BUCKET, project)
