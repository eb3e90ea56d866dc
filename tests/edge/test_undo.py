"""Undoing: in reverse, all of it, or nothing of it."""

from __future__ import annotations

from functools import partial

import pytest

from dsec.bus.errors import DiskFull, InfraError
from dsec.plugins.edge.undo import undoing


async def test_a_failure_undoes_all_stages_in_reverse_though_an_undo_fails() -> None:
    undone: list[str] = []

    async def undo(name: str) -> None:
        undone.append(name)
        if name == "second":
            raise InfraError("cannot")

    async def work() -> None:
        async with undoing() as stages:
            for name in ("first", "second", "third"):
                stages.later(name, partial(undo, name))
            raise DiskFull("full")

    with pytest.raises(DiskFull):
        await work()
    assert undone == ["third", "second", "first"]


async def test_what_is_kept_is_not_undone() -> None:
    undone: list[str] = []

    async def undo() -> None:
        undone.append("undone")

    async with undoing() as stages:
        stages.later("stage", undo)
        stages.keep()
    assert undone == []
