"""`python -m tests.vm`: pytest in the guest. See docs/testbed.md."""

from __future__ import annotations

import argparse
import asyncio
import resource
import shlex
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

from dsec.bus.errors import DsecError
from tests.vm import cargo, image, machine

SUITE: Final = (
    *("tests/conformance/test_container.py", "tests/unified", "tests/images/test_older_kernels.py"),
    *(f"tests/container/test_{name}.py" for name in ("limits", "cgroups", "kill", "lifecycle", "reclaim")),
)
_HEAD: Final = b'<?xml version="1.0" encoding="utf-8"?>'
TIMEOUT: Final = 400
"""Seconds for one test."""
SLOWNESS: Final = 5
"""Of emulation, in wall time of what a test waits for."""


def main() -> int:
    """Exit status of pytest inside, or 70 when the machine told none."""
    options, chosen = _parser().parse_known_args()
    try:
        return asyncio.run(_run(options, chosen))
    except DsecError as error:
        sys.stderr.write(f"test-vm: {error.message}\n")
        return 70


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.vm", description=__doc__, epilog="Others: pytest's."
    )
    parser.add_argument("--make", action="store_true", help="only make or verify the guest")
    parser.add_argument("--accel", default="tcg", choices=("tcg", "kvm"), help="default: %(default)s")
    parser.add_argument("--within", type=float, default=720, help="seconds (default: %(default)s)")
    parser.add_argument("--junitxml", type=Path, help="where the report goes")
    return parser


async def _run(options: argparse.Namespace, chosen: list[str]) -> int:
    began = time.monotonic()
    guest = await image.guest(_tell)
    _tell(f"guest: verified in {guest.directory} after {time.monotonic() - began:.1f} s")
    if options.make:
        return 0
    told = await machine.run(
        guest,
        cargo.Job(["sh", "-c", _script(chosen)], {"DSEC_TEST_SLOWNESS": str(SLOWNESS)}),
        within=options.within,
        output=_show,
        shape=machine.Shape(accelerator=options.accel),
    )
    if options.junitxml:
        options.junitxml.parent.mkdir(parents=True, exist_ok=True)
        options.junitxml.write_bytes(joined(told.report))
    used = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    _tell(f"guest: exit status {told.code} after {time.monotonic() - began:.0f} s, {used:.0f} s of CPU time")
    return told.code


def _script(chosen: list[str]) -> str:
    """Pytest as asked for; by default all of SUITE in two processes, then what has to be alone."""
    options = ["--timeout", str(TIMEOUT), "--durations=25", "--hypothesis-profile=ci"]
    pytest = [cargo.PYTHON, "-m", "pytest", "-p", "no:cacheprovider", *options]
    if chosen:
        return shlex.join([*pytest, "--basetemp", "/scratch/t", f"--junitxml={cargo.REPORT}", *chosen])
    spread = ["-m", "not alone", "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder"]
    first = [*pytest, "--basetemp", "/scratch/t1", "--junitxml=/scratch/1.xml", *spread, *SUITE]
    last = [*pytest, "--basetemp", "/scratch/t2", "--junitxml=/scratch/2.xml", "-m", "alone", *with_alone()]
    report = f"cat /scratch/1.xml /scratch/2.xml > {cargo.REPORT}"
    runs = f"{shlex.join(first)}; first=$?; {shlex.join(last)}; last=$?"
    return f"{runs}; {report}; exit $((first ? first : last))"


def with_alone() -> list[str]:
    """The files that have a test with that mark: only these are imported for it."""
    paths = [cargo.CHECKOUT / name for name in SUITE]
    files = [file for path in paths for file in (sorted(path.glob("test_*.py")) if path.is_dir() else [path])]
    return [str(file.relative_to(cargo.CHECKOUT)) for file in files if "mark.alone" in file.read_text()]


def joined(reports: bytes) -> bytes:
    """One JUnit document of several that follow one another."""
    whole = ET.Element("testsuites")
    for part in reports.split(_HEAD):
        if part.strip():
            whole.extend(ET.fromstring(part))
    return bytes(ET.tostring(whole, encoding="utf-8", xml_declaration=True))


def _tell(line: str) -> None:
    sys.stderr.write(f"test-vm: {line}\n")


def _show(chunk: bytes) -> None:
    sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
