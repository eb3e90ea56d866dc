"""The node's own caller passes the suite of callers."""

import pytest

from dsec.sdk.testing.calls import CallSuite

pytestmark = pytest.mark.node


class TestCalls(CallSuite):
    pass
