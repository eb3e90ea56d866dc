"""The container backend passes the conformance suite."""

import pytest

from dsec.sdk.testing import conformance
from dsec.sdk.testing.conformance import sh, split, victim

__all__ = ["sh", "split", "victim"]

pytestmark = pytest.mark.node


class TestLifecycle(conformance.LifecycleSuite):
    pass


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


class TestExecLimits(conformance.ExecLimitSuite):
    pass


class TestPorts(conformance.PortSuite):
    pass


class TestPausing(conformance.PauseSuite):
    pass


class TestHonest(conformance.HonestSuite):
    pass


class TestStopping(conformance.StoppingSuite):
    pass


class TestIsolation(conformance.IsolationSuite):
    pass


@pytest.mark.kill
class TestRecovery(conformance.RecoverySuite):
    pass


@pytest.mark.kill
class TestStoppingRecovery(conformance.StoppingRecoverySuite):
    pass
