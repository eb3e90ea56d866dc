"""What holds for every test."""

import asyncio
import gc
import io
import signal
import threading
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import settings

NEVER_BLOCK = [
    "dsec.bus.core.claims",
    "dsec.bus.core.service",
    *(f"dsec.bus.nats.{name}" for name in ("appender", "connection", "directget", "wire")),
    *("dsec.plugins.scheduler", "dsec.plugins.journal"),
    *(f"dsec.sdk.{name}" for name in ("exec", "link", "stream")),
]
"""Parts on the path of every request: a blocking call in one of them stops a whole process."""


settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")


def pytest_configure() -> None:
    """A shell's background job ignores the interrupt, and so would every program that the tests start."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that took too long tells what each task of asyncio waits for."""
    report = yield
    if call.excinfo is not None and "from pytest-timeout" in str(call.excinfo.value):
        report.sections.append(("asyncio tasks", _tasks()))
    return report


def _tasks() -> str:
    told = io.StringIO()
    for task in [one for one in gc.get_objects() if type(one) is asyncio.Task and not one.done()]:
        task.print_stack(file=told)
    return told.getvalue()


@pytest.fixture(autouse=True)
def nothing_blocks_the_loop() -> Iterator[None]:
    """A blocking call from these modules inside a running loop raises BlockingError."""
    with blockbuster_ctx(NEVER_BLOCK):
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers of pytest-xdist begin with the modules that take longest: none is left with one at the end."""
    if hasattr(config, "workerinput"):
        longest: dict[Path, float] = defaultdict(float)
        for item in items:
            longest[item.path] = max(longest[item.path], seconds(item))
        items.sort(key=lambda item: -longest[item.path])


def seconds(item: pytest.Item) -> float:
    """How long it may take, as its marks tell; zero for a quick one."""
    limit = item.get_closest_marker("timeout")
    return float(limit.args[0]) if limit else 180.0 * bool(item.get_closest_marker("slow"))
