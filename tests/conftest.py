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
