"""What is shipped: sdist -> wheel -> clean environment -> everything loads."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from dsec.sdk.testing import platform

ROOT = Path(__file__).parent.parent.parent
LOAD_ALL = """
from importlib.metadata import entry_points
for group in ("dsec.drivers", "dsec.images", "dsec.plugins"):
    found = entry_points(group=group)
    assert found, group
    for entry in found: entry.load()
import dsec.benchmarks, dsec.bus.chronus.build
assert dsec.bus.chronus.build.binary().exists()
"""
TRAINER = """
import importlib.util, sys
import dsec, dsec.sdk
assert importlib.util.find_spec("uvloop") is None
assert not [name for name in sys.modules if name.startswith("dsec.plugins.")]
"""
RUNS = """
import asyncio, dsec
async def main():
    async with dsec.Client({url!r}, "{credentials}") as client, client.sandbox(image="base") as sandbox:
        assert (await sandbox.run("echo hello", check=True)).stdout == "hello\\n"
asyncio.run(main())
"""


def run(*argv: str | Path) -> None:
    done = subprocess.run([str(arg) for arg in argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist, and the wheel that was built from it."""
    directory = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", directory, ROOT)
    return directory


def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_wheel_has_the_packages_and_the_sdist_their_sources(dist: Path) -> None:
    names = set(zipfile.ZipFile(wheel(dist)).namelist())
    assert {"dsec/py.typed", "dsec/bus/errors.py", "dsec/bus/chronus/chronus.c"} <= names
    assert {"dsec/plugins/edge/__init__.py", "dsec/sdk/client.py", "dsec/benchmarks/exec.py"} <= names
    assert {"dsec/sync.py", "dsec/sdk/sync/client.py"} <= names
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        assert any(name.endswith("/bus/chronus/chronus.c") for name in tar.getnames())


def installed(dist: Path, extra: str, into: Path) -> Path:
    """Where the programs of a fresh environment are, in which the wheel was installed."""
    run(sys.executable, "-m", "venv", into)
    run(into / "bin/python", "-m", "pip", "install", "-q", f"{wheel(dist)}{extra}")
    return into / "bin"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_nodes_environment_loads_every_part(dist: Path, tmp_path: Path) -> None:
    programs = installed(dist, "[all]", tmp_path / "venv")
    run(programs / "python", "-W", "error", "-c", LOAD_ALL)
    run(programs / "dsec", "--help")


@pytest.mark.slow
@pytest.mark.node
@pytest.mark.timeout(300)
def test_a_trainers_environment_has_no_node_parts_and_a_client_that_works(
    dist: Path, tmp_path: Path, live: platform.Part
) -> None:
    programs = installed(dist, "", tmp_path / "venv")
    run(programs / "python", "-W", "error", "-c", TRAINER)
    program = RUNS.format(url=live.url, credentials=live.credentials)
    run(programs / "python", "-W", "error", "-c", program)
    run(programs / "dsec", "ls", "--url", live.url, "--credentials", live.credentials)
