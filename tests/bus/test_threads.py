"""A cancelled caller of a thread goes on when the thread has ended, and nothing that it made is lost."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dsec.bus.threads import finish


async def test_a_cancelled_caller_waits_however_often_it_is_cancelled() -> None:
    go_on, undone = threading.Event(), list[str]()

    def work() -> str:
        go_on.wait(10)
        return "made"

    working = asyncio.ensure_future(finish(work, undo=undone.append))
    for _ in range(3):
        await asyncio.sleep(0.02)
        working.cancel()
    await asyncio.sleep(0.02)
    assert not working.done()
    assert undone == []
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert undone == ["made"]


async def test_what_is_asked_for_is_not_undone_and_an_error_is_told() -> None:
    undone = list[str]()
    assert await finish(lambda: "made", undo=undone.append) == "made"
    with pytest.raises(ZeroDivisionError):
        await finish(lambda: str(1 // 0), undo=undone.append)
    assert undone == []


async def test_a_cancelled_caller_hears_of_its_cancellation_not_of_the_error() -> None:
    failing = asyncio.ensure_future(finish(lambda: threading.Event().wait(0.1) or 1 // 0))
    await asyncio.sleep(0.02)
    failing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await failing
