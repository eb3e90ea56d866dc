"""What a sandbox does for its user holds through the sync twin, too."""

from collections.abc import AsyncIterator
from typing import cast

import pytest
import pytest_asyncio

from dsec.sdk import Client, sync
from dsec.sdk.testing import conformance
from dsec.sdk.testing.conformance import sh
from dsec.sdk.testing.platform import Part
from tests.sdk.face import Face

__all__ = ["sh"]

pytestmark = pytest.mark.node


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(live: Part) -> AsyncIterator[Client]:
    """The twin's, with the face of the asynchronous one."""
    async with Face(sync.Client(live.url, live.credentials)) as faced:
        yield cast("Client", faced)


class TestExec(conformance.ExecSuite):
    pass


class TestOutput(conformance.OutputSuite):
    pass


class TestFiles(conformance.FileSuite):
    pass


class TestWatches(conformance.WatchSuite):
    pass


class TestSessions(conformance.SessionSuite):
    pass


class TestTerminals(conformance.TerminalSuite):
    pass


class TestDetached(conformance.DetachedSuite):
    pass


class TestPorts(conformance.PortSuite):
    pass


class TestPausing(conformance.PauseSuite):
    pass


class TestStopping(conformance.StoppingSuite):
    pass
