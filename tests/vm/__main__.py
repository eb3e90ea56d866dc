"""`python -m tests.vm`: pytest in the guest. See docs/testbed.md."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Final

from dsec.bus.errors import DsecError
from tests.vm import cargo, image, machine

SUITE: Final = (
    "tests/unified",
    "tests/conformance/test_container.py",
    *("tests/container/test_limits.py", "tests/container/test_cgroups.py", "tests/container/test_kill.py"),
    "tests/images/test_older_kernels.py",
)
SLOWNESS: Final = 5
"""Of emulation, in wall time of what a test waits for."""


def main() -> int:
    """Exit status of pytest inside, or 70 when the machine told none."""
    options, chosen = _parser().parse_known_args()
    try:
        return asyncio.run(_run(options, chosen or list(SUITE)))
    except DsecError as error:
        sys.stderr.write(f"test-vm: {error.message}\n")
        return 70


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.vm", description=__doc__, epilog="Others: pytest's."
    )
    parser.add_argument("--make", action="store_true", help="only make or verify the guest")
    parser.add_argument("--accel", default="tcg", choices=("tcg", "kvm"), help="default: %(default)s")
    parser.add_argument("--within", type=float, default=480, help="seconds (default: %(default)s)")
    parser.add_argument("--junitxml", type=Path, help="where the report goes")
    return parser


async def _run(options: argparse.Namespace, chosen: list[str]) -> int:
    began = time.monotonic()
    guest = await image.guest(_tell)
    _tell(f"guest: verified in {guest.directory} after {time.monotonic() - began:.1f} s")
    if options.make:
        return 0
    pytest = [cargo.PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "--basetemp", "/scratch/t"]
    told = await machine.run(
        guest,
        cargo.Job([*pytest, f"--junitxml={cargo.REPORT}", *chosen], {"DSEC_TEST_SLOWNESS": str(SLOWNESS)}),
        within=options.within,
        output=_show,
        shape=machine.Shape(accelerator=options.accel),
    )
    if options.junitxml:
        options.junitxml.parent.mkdir(parents=True, exist_ok=True)
        options.junitxml.write_bytes(told.report)
    _tell(f"guest: exit status {told.code} after {time.monotonic() - began:.0f} s")
    return told.code


def _tell(line: str) -> None:
    sys.stderr.write(f"test-vm: {line}\n")


def _show(chunk: bytes) -> None:
    sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
