"""Virtual environments of the adapters' packages: made once into the cache, named by what is in them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
REQUIREMENTS = ROOT / "examples/adapters/requirements"
ASK = "import sys; print(sys.version_info >= (3, {}))"


def cache() -> Path:
    return Path(os.environ.get("DSEC_CACHE") or Path.home() / ".cache/opendsec") / "adapters"


def interpreter(minor: int) -> str | None:
    """A Python of version 3.`minor` or newer: this one, one on the PATH or of pyenv; None without any."""
    named = [found for n in range(minor, minor + 5) if (found := shutil.which(f"python3.{n}"))]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for python in (sys.executable, *named, *map(str, sorted(pyenv.glob("3.*/bin/python")))):
        told = subprocess.run([python, "-c", ASK.format(minor)], capture_output=True, text=True, check=False)
        if told.returncode == 0 and told.stdout.strip() == "True":
            return python
    return None


def environment(name: str, python: str) -> Path:
    """The interpreter of the environment with `requirements/NAME.txt`, installed if it is not there yet."""
    pinned = REQUIREMENTS / f"{name}.txt"
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256(pinned.read_bytes() + version.encode()).hexdigest()[:12]
    home, done = cache() / f"{name}-{key}", cache() / f"{name}-{key}.done"
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may want it at once
        if not done.exists():
            shutil.rmtree(home, ignore_errors=True)
            subprocess.run([python, "-m", "venv", home], check=True)
            pip = (home / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
            told = subprocess.run([*pip, "-r", pinned], stderr=subprocess.PIPE, text=True, check=False)
            if told.returncode:
                raise RuntimeError(f"pip could not install {pinned.name}: {told.stderr[-3000:]}")
            done.touch()
    return home / "bin/python"


def main() -> None:
    """Make all of them: `python -m tests.adapters.venvs`."""
    for name, minor in (("inspect", 11), ("swerex", 11), ("harbor", 12)):
        python = interpreter(minor)
        print(name, environment(name, python) if python else f"needs Python 3.{minor}, which is not here")


if __name__ == "__main__":
    main()
