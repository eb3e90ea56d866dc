"""What is shipped: sdist -> wheel -> clean environment -> everything loads."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

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
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        assert any(name.endswith("/bus/chronus/chronus.c") for name in tar.getnames())


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("extra", "program"), [("[all]", LOAD_ALL), ("", TRAINER)], ids=["node", "trainer"])
def test_a_clean_environment_loads_what_it_installs(
    dist: Path, tmp_path: Path, extra: str, program: str
) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "-q", f"{wheel(dist)}{extra}")
    run(python, "-W", "error", "-c", program)
    run(tmp_path / "venv/bin/dsec", "--help")
