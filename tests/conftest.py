"""What holds for every test."""

from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx

NEVER_BLOCK = [
    "dsec.bus.core.claims",
    "dsec.bus.core.service",
    *(f"dsec.bus.nats.{name}" for name in ("appender", "connection", "directget", "wire")),
    *("dsec.plugins.scheduler", "dsec.plugins.journal"),
    *(f"dsec.sdk.{name}" for name in ("exec", "link", "stream")),
]
"""Parts on the path of every request: a blocking call in one of them stops a whole process."""


@pytest.fixture(autouse=True)
def nothing_blocks_the_loop() -> Iterator[None]:
    """A blocking call from these modules inside a running loop raises BlockingError."""
    with blockbuster_ctx(NEVER_BLOCK):
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers of pytest-xdist begin with the modules that take long: none is left with one at the end."""
    if hasattr(config, "workerinput"):
        long = {item.path for item in items if any(item.iter_markers("slow"))}
        items.sort(key=lambda item: item.path not in long)
