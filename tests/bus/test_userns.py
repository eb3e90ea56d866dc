"""User namespaces: their maps, and that nobody outlives us for them."""

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from dsec.bus import userns

pytestmark = pytest.mark.node

KILLED_IN_THE_MIDDLE = """
import os, sys, signal
from pathlib import Path
from dsec.bus import userns
userns.Path = lambda path: (print(path.split("/")[2], flush=True), signal.pause())
userns.user_namespace(1_000_000, 65_536)
"""


def test_a_namespace_has_its_map() -> None:
    descriptor = userns.user_namespace(1_000_000, 65_536)
    try:
        child = os.fork()
        if child == 0:
            userns._LIBC.setns(descriptor, 0)
            os._exit(Path("/proc/self/uid_map").read_text().split() != ["0", "1000000", "65536"])
        assert os.waitpid(child, 0)[1] == 0
    finally:
        os.close(descriptor)


@pytest.mark.kill
@pytest.mark.slow
def test_a_process_killed_in_the_middle_leaves_nobody_for_long() -> None:
    parent = psutil.Popen([sys.executable, "-c", KILLED_IN_THE_MIDDLE], stdout=-1)
    assert parent.stdout is not None
    born = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 2 * userns.LIFE / 1e6
    while born.is_running() and born.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.1)
