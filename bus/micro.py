"""Discovery as NATS micro prescribes it: answers to `$SRV.PING|INFO|STATS[.<name>[.<id>]]`.

Format: NATS Architecture Decision Record 32, "Service API"; it is what `nats micro ls|info|stats` asks.
The service object of nats-py is not used: it answers only for endpoints that it subscribes itself, one
message at a time, on nats-py's client (docs/adr/0006-discovery.md).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import orjson

from dsec.bus.handlers import receiving
from dsec.bus.transport import Bus, Received
from dsec.bus.workload import Endpoint, workload_of

log = logging.getLogger(__name__)

TYPE: Final = "io.nats.micro.v1.{}_response"


def package_version() -> str:
    """The distribution's version, as semantic versioning wants it."""
    try:
        return version("opendsec")
    except PackageNotFoundError:  # a checkout on the path, not installed
        return "0.0.0"


@dataclass(frozen=True, slots=True)
class Service:
    """One running part: `name` is its kind, `id` tells it from others of the kind."""

    name: str
    id: str
    description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    version: str = field(default_factory=package_version)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def ping(self) -> dict[str, Any]:
        """The answer to PING."""
        return self._head("ping")

    def info(self, endpoints: Iterable[Endpoint]) -> dict[str, Any]:
        """The answer to INFO."""
        told = [_endpoint(one) | {"metadata": {}} for one in endpoints]
        return self._head("info") | {"description": self.description, "endpoints": told}

    def stats(self, endpoints: Iterable[Endpoint]) -> dict[str, Any]:
        """The answer to STATS; durations in ns, `started` in UTC."""
        started = self.started.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        told = [_endpoint(one) | _figures(one) for one in endpoints]
        return self._head("stats") | {"started": started, "endpoints": told}

    def _head(self, verb: str) -> dict[str, Any]:
        return {
            "type": TYPE.format(verb),
            "name": self.name,
            "id": self.id,
            "version": self.version,
            "metadata": dict(self.metadata),
        }


def _endpoint(one: Endpoint) -> dict[str, Any]:
    return {"name": one.name, "subject": one.subject, "queue_group": one.queue}


def _figures(one: Endpoint) -> dict[str, Any]:
    return {
        "num_requests": one.requests,
        "num_errors": one.errors,
        "last_error": one.last_error,
        "processing_time": one.processing_ns,
        "average_processing_time": one.processing_ns // one.requests if one.requests else 0,
        "data": None,
    }


@contextlib.asynccontextmanager
async def discoverable(bus: Bus, service: Service) -> AsyncIterator[None]:
    """Answer for `service` while the block runs, with the endpoints that `bus` serves by then."""
    load = workload_of(bus)
    answers: dict[str, Callable[[], dict[str, Any]]] = {
        "PING": service.ping,
        "INFO": lambda: service.info(load.endpoints.values()),
        "STATS": lambda: service.stats(load.endpoints.values()),
    }

    async def tell(message: Received) -> None:
        verb = message.subject.split(".")[1]
        if message.reply:
            await bus.publish(message.reply, orjson.dumps(answers[verb]()))

    async with contextlib.AsyncExitStack() as stack:
        for verb in answers:
            for scope in ("", f".{service.name}", f".{service.name}.{service.id}"):
                subject = f"$SRV.{verb}{scope}"
                await stack.enter_async_context(
                    receiving(bus, subject, tell, endpoint=Endpoint(subject, ""), concurrency=None)
                )
        yield
