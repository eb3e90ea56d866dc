"""Whole streams out of JetStream and into it: the snapshot and restore calls of its API.

A snapshot is of one moment, taken by the stream's leader while others write; sequences, times and headers are
kept. The bytes are a tar archive in S2 compression, as `nats stream backup` stores them (`stream.tar.s2`).
Protocol: NATS ADR-1 and the server's `stream_snapshot_request`: chunks come on a subject of ours and each is
acknowledged on its reply; an empty one ends it. To restore, chunks are requests, and an empty one ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import orjson

from dsec.bus import subjects
from dsec.bus.errors import DeadlineExceeded, GoneError, InfraError
from dsec.bus.ids import tail
from dsec.bus.nats.directget import answer_of
from dsec.bus.transport import Bus, Received

CHUNK: Final = 128 * 1024
WITHIN: Final = 30.0
"""Seconds until the next chunk, or the verdict on the last, must be there."""
_NO_STREAM: Final = 10059


async def take(bus: Bus, stream: str, head: dict[str, Any]) -> AsyncIterator[bytes]:
    """The chunks of a snapshot; `head` gets the stream's `config` and `state` before the first.

    Raises GoneError (no such stream), BrokerDown, DeadlineExceeded, InfraError (the server broke off).
    """
    chunks: asyncio.Queue[Received] = asyncio.Queue()
    inbox = f"{bus.inbox}.snapshot-{tail(8)}"
    subscription = await bus.subscribe(inbox, chunks.put_nowait)
    try:
        body = orjson.dumps({"deliver_subject": inbox, "chunk_size": CHUNK, "jsck": True})
        answer = answer_of(await bus.request(subjects.api(f"STREAM.SNAPSHOT.{stream}"), body, timeout=WITHIN))
        _checked(answer, stream)
        head |= {"config": answer["config"], "state": answer["state"]}
        while chunk := await _next(chunks, stream):
            if chunk.reply:
                await bus.publish(chunk.reply, b"")
            yield chunk.data
    finally:
        await subscription.unsubscribe()


async def _next(chunks: asyncio.Queue[Received], stream: str) -> Received | None:
    """None at the end. Raises DeadlineExceeded, InfraError."""
    try:
        async with asyncio.timeout(WITHIN):
            chunk = await chunks.get()
    except TimeoutError:
        raise DeadlineExceeded(f"the snapshot of {stream} stopped: try again") from None
    if chunk.data:
        return chunk
    headers = chunk.headers or {}
    if headers.get("Status", "204") != "204":
        raise InfraError(
            f"the snapshot of {stream} broke off: {headers.get('Description', 'no reason given')}"
        )
    return None


async def give(
    bus: Bus, stream: str, head: dict[str, Any], chunks: Iterator[bytes] | AsyncIterator[bytes]
) -> dict[str, Any]:
    """Make the stream of a snapshot with the `config` and `state` of `head`; its state afterwards.

    Raises InfraError (the server takes it not; there is no such stream then), BrokerDown, DeadlineExceeded.
    """
    body = orjson.dumps({"config": head["config"], "state": head["state"]})
    answer = answer_of(await bus.request(subjects.api(f"STREAM.RESTORE.{stream}"), body, timeout=WITHIN))
    _checked(answer, stream)
    to = str(answer["deliver_subject"])
    async for chunk in _any(chunks):
        received = await bus.request(to, chunk, timeout=WITHIN)
        if received.data:
            _checked(answer_of(received), stream)
    verdict = answer_of(await bus.request(to, b"", timeout=WITHIN))
    _checked(verdict, stream)
    return dict(verdict["state"])


async def _any(chunks: Iterator[bytes] | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if isinstance(chunks, AsyncIterator):
        async for chunk in chunks:
            yield chunk
        return
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk


def _checked(answer: dict[str, Any], stream: str) -> None:
    error = answer.get("error")
    if error and error.get("err_code") == _NO_STREAM:
        raise GoneError(f"there is no stream {stream}")
    if error:
        raise InfraError(f"the broker refused it for {stream}: {error.get('description')}")
