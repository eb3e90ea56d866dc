"""How full the streams are, asked of the broker: core has the right to, and tells it among its metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Final

import orjson

from dsec.bus import subjects
from dsec.bus.errors import DsecError
from dsec.bus.metrics import names
from dsec.bus.metrics.figures import Sample
from dsec.bus.transport import Bus

EVERY: Final = 1.0
"""Seconds between questions, however often somebody looks."""
WITHIN: Final = 0.8
STREAMS: Final = (
    *subjects.STREAMS,
    *(
        f"KV_{bucket}"
        for bucket in (
            subjects.REGISTRY_BUCKET,
            subjects.OPS_BUCKET,
            subjects.QUOTA_BUCKET,
            subjects.NODES_BUCKET,
            subjects.JOBS_BUCKET,
        )
    ),
)


class Streams:
    """A probe and a source of `Figures.telling`; a stream that does not answer is not told."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._asked = float("-inf")
        self._infos: dict[str, dict[str, Any]] = {}

    async def ask(self) -> None:
        """Learn it anew, unless it was asked lately."""
        if time.monotonic() - self._asked < EVERY:
            return
        self._asked = time.monotonic()
        answers = await asyncio.gather(*(self._info(stream) for stream in STREAMS))
        self._infos = {stream: info for stream, info in zip(STREAMS, answers, strict=True) if info}

    async def _info(self, stream: str) -> dict[str, Any]:
        try:
            subject = subjects.api(f"STREAM.INFO.{stream}")
            answer: dict[str, Any] = orjson.loads(
                (await self._bus.request(subject, b"", timeout=WITHIN)).data
            )
        except (DsecError, orjson.JSONDecodeError):
            return {}
        return answer if "state" in answer else {}

    def samples(self) -> Iterator[Sample]:
        for stream, info in self._infos.items():
            yield names.STREAM_BYTES, (stream,), info["state"]["bytes"]
            yield names.STREAM_MESSAGES, (stream,), info["state"]["messages"]
            if info["config"]["max_bytes"] > 0:
                yield names.STREAM_MAX_BYTES, (stream,), info["config"]["max_bytes"]
