"""The command line against the protocol peer of the SDK's tests, in a process of its own."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest_asyncio

from dsec.bus.nats.broker import Broker
from dsec.bus.nats.credentials import Credentials, Role
from tests.sdk.conftest import broker, peer
from tests.sdk.support import PRINCIPAL, PROJECT, Peer

__all__ = ["broker", "peer"]


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Standard output as JSON, an object a line."""
        return [json.loads(line) for line in self.out.splitlines()]


Dsec = Callable[..., Awaitable[Outcome]]


async def dsec_process(*argv: str, stdin: bytes | IO[bytes] = b"", stdout: int = PIPE) -> Outcome:
    """Run `python -m dsec.sdk.cli ARGV…` to its end; its input and output are pipes, or what is given."""
    source, text = (PIPE, stdin) if isinstance(stdin, bytes) else (stdin, None)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dsec.sdk.cli", *argv, stdin=source, stdout=stdout, stderr=PIPE
    )
    out, err = await process.communicate(text)
    assert process.returncode is not None
    return Outcome(process.returncode, (out or b"").decode(), err.decode())


@pytest_asyncio.fixture(loop_scope="session")
async def dsec(broker: Broker, peer: Peer, tmp_path: Path) -> AsyncIterator[Dsec]:
    """`dsec COMMAND …` as a principal of the peer's project."""
    who = tmp_path / "who.json"
    Credentials.new(Role.TENANT, project=PROJECT, principal=PRINCIPAL).save(who)

    async def run(command: str, *argv: str, stdin: bytes | IO[bytes] = b"", stdout: int = PIPE) -> Outcome:
        where = ("--url", broker.url, "--credentials", str(who))
        return await dsec_process(command, *where, *argv, stdin=stdin, stdout=stdout)

    yield run
