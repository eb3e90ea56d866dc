"""The third party's backend, installed as its users install it, passes the conformance suite both ways."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "third_party_backend"
REST = "Isolation or Pausing or Stopping and not Recovery"

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example as a distribution, beside the dsec of this environment."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", target, EXAMPLE], check=True)
    return target


def conformance(where: Path, scratch: Path, driver: str, suites: str, *options: str) -> None:
    """Run some suites; all of them must pass."""
    argv = [sys.executable, "-m", "dsec.sdk.cli", "conformance", "--driver", driver, *options]
    done = subprocess.run(
        [*argv, "--", "--basetemp", str(scratch), "-k", suites],
        env=os.environ | {"PYTHONPATH": str(where), "PYTEST_ADDOPTS": ""},
        cwd=scratch.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("suites", ["Lifecycle or Exec", "Output or Files", REST, "Recovery"])
def test_it_passes_in_the_edges_process(installed: Path, tmp_path: Path, suites: str) -> None:
    conformance(installed, tmp_path / "run", "bubble", suites)


def test_it_passes_in_a_process_of_its_own(installed: Path, tmp_path: Path) -> None:
    conformance(installed, tmp_path / "run", "bubble", "Lifecycle or Files", "--own-process")


@pytest.mark.kill
def test_containers_pass_in_a_process_of_their_own(tmp_path: Path) -> None:
    conformance(tmp_path, tmp_path / "run", "container", "Recovery and driver or Ports", "--own-process")
