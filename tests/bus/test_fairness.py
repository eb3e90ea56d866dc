"""A project that fills its share waits for itself; the others are served."""

import asyncio
import contextlib

import pytest

from dsec.bus.errors import Overloaded
from dsec.bus.fairness import Shares


async def test_a_project_that_fills_its_share_stops_nobody_else() -> None:
    shares, forever = Shares(8), asyncio.Event()

    async def stuck() -> None:
        async with shares.place("p-mallory"):
            await forever.wait()

    tasks = [asyncio.create_task(stuck()) for _ in range(8)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(10), shares.place("p-lab"):
            pass
        with pytest.raises(Overloaded) as caught:
            async with shares.place("p-mallory"):
                pass
        assert caught.value.retry_after
    finally:
        forever.set()
        await asyncio.gather(*tasks)
    async with asyncio.timeout(10), shares.place("p-mallory"):
        pass


async def test_a_cancelled_call_gives_its_place_back() -> None:
    shares = Shares(1)
    for _ in range(3):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01), shares.place("p-lab"):
                await asyncio.Event().wait()
    async with asyncio.timeout(10), shares.place("p-lab"):
        pass
