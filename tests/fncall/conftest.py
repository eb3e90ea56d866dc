"""Real calls: the image of calls, callers of their own, and a platform that serves them."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dsec.bus.caller import CallResult, parse_call
from dsec.plugins.fncall import FnCaller
from dsec.plugins.fncall.settings import Settings
from dsec.plugins.images import ErofsImages
from dsec.plugins.images.base import functions_image
from dsec.sdk import Client
from dsec.sdk.testing import platform
from dsec.sdk.testing.plugin import add_functions

PROJECT = "p-one"


def b64(content: bytes | str) -> str:
    return base64.b64encode(content.encode() if isinstance(content, str) else content).decode()


def raw(text: str) -> bytes:
    return base64.b64decode(text)


@dataclass
class Calls:
    """A caller, and the directory that it was given."""

    caller: FnCaller
    home: Path

    async def __call__(
        self, source: str, *, project: str = PROJECT, within: float = 30, **spec: Any
    ) -> CallResult:
        return await self.caller.call(project, parse_call({"source": source, **spec}), time.time() + within)

    async def judge(self, source: str, cases: list[dict[str, Any]], **more: Any) -> CallResult:
        checker, everything = more.pop("checker", {}), more.pop("all_cases", True)
        coded = [{**one, **{k: b64(one[k]) for k in ("stdin", "expected") if k in one}} for one in cases]
        judge = {"cases": coded, "checker": checker, "all_cases": everything}
        return await self(source, judge=judge, **more)


@pytest.fixture(scope="session")
async def images(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ErofsImages]:
    async with ErofsImages(tmp_path_factory.mktemp("images")) as images:
        await images.import_file("functions", await functions_image(), "base")
        yield images


@contextlib.asynccontextmanager
async def calling(images: ErofsImages, home: Path, **settings: Any) -> AsyncIterator[Calls]:
    async with FnCaller.running(home, images, "n-test", Settings(**settings)) as caller:
        yield Calls(caller, home)


@pytest.fixture(scope="session")
async def call(images: ErofsImages, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Calls]:
    """A caller that tests share."""
    async with calling(images, tmp_path_factory.mktemp("calls")) as calls:
        yield calls


@pytest.fixture(scope="session")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[platform.Part]:
    """The whole platform, with the image of calls."""
    home = tmp_path_factory.mktemp("home")
    await add_functions(home, await functions_image())
    async with platform.running(home) as part:
        yield part


@pytest.fixture(scope="session")
async def calls(served: platform.Part) -> AsyncIterator[Client]:
    async with served.client() as client:
        yield client
