"""All suites for one backend, as `dsec conformance --driver NAME` runs them."""

from dsec.sdk.testing.detached import DetachedSuite, ExecLimitSuite
from dsec.sdk.testing.execs import ExecSuite
from dsec.sdk.testing.files import FileSuite
from dsec.sdk.testing.honest import HonestSuite
from dsec.sdk.testing.isolation import IsolationSuite
from dsec.sdk.testing.lifecycle import LifecycleSuite
from dsec.sdk.testing.output import OutputSuite
from dsec.sdk.testing.pausing import PauseSuite
from dsec.sdk.testing.ports import PortSuite
from dsec.sdk.testing.recovery import RecoverySuite, split, victim
from dsec.sdk.testing.sessions import SessionSuite, sh
from dsec.sdk.testing.stopping import StoppingRecoverySuite, StoppingSuite
from dsec.sdk.testing.terminals import TerminalSuite
from dsec.sdk.testing.watching import WatchSuite

__all__ = [
    "DetachedSuite",
    "ExecLimitSuite",
    "ExecSuite",
    "FileSuite",
    "HonestSuite",
    "IsolationSuite",
    "LifecycleSuite",
    "OutputSuite",
    "PauseSuite",
    "PortSuite",
    "RecoverySuite",
    "SessionSuite",
    "StoppingRecoverySuite",
    "StoppingSuite",
    "TerminalSuite",
    "WatchSuite",
    "sh",
    "split",
    "victim",
]


class TestLifecycle(LifecycleSuite):
    pass


class TestExec(ExecSuite):
    pass


class TestOutput(OutputSuite):
    pass


class TestFiles(FileSuite):
    pass


class TestWatches(WatchSuite):
    pass


class TestSessions(SessionSuite):
    pass


class TestTerminals(TerminalSuite):
    pass


class TestDetached(DetachedSuite):
    pass


class TestExecLimits(ExecLimitSuite):
    pass


class TestPorts(PortSuite):
    pass


class TestPausing(PauseSuite):
    pass


class TestHonest(HonestSuite):
    pass


class TestStopping(StoppingSuite):
    pass


class TestIsolation(IsolationSuite):
    pass


class TestRecovery(RecoverySuite):
    pass


class TestStoppingRecovery(StoppingRecoverySuite):
    pass
