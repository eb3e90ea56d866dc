"""Insides for the tests of chronus: one per module with and one without a user namespace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from dsec.bus.chronus.guest import Guest
from tests.chronus.inside import Inside, inside


@pytest.fixture(scope="module")
def box() -> Iterator[Inside]:
    """Root inside is root on the host: the harder case for isolation."""
    with inside() as made:
        yield made


@pytest.fixture(scope="module")
def userns_box() -> Iterator[Inside]:
    with inside(userns=True) as made:
        yield made


@pytest.fixture
async def guest(box: Inside) -> AsyncIterator[Guest]:
    async with box.guest() as connected:
        yield connected
        async with asyncio.timeout(5):  # what a cancelled start had begun is released behind it
            while await connected.execs():  # noqa: ASYNC110 - chronus tells nobody of a release
                await asyncio.sleep(0.01)
    assert [child for child in box.cgroup.iterdir() if child.is_dir()] == []
