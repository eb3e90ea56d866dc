"""One run of the guest: QEMU starts, streams what the job prints, and ends with its result or at a deadline.

The job's output comes through one virtio-serial port, its result through another: `result CODE LENGTH`, a
newline, and LENGTH bytes of report. Nothing that a job prints can be taken for a result. QEMU dies with this
process (PR_SET_PDEATHSIG), and all its files but the guest's own are nameless.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsec.bus.errors import InfraError, MissingTool
from dsec.plugins.images import erofs
from tests.vm import tsc
from tests.vm.cargo import Job, nameless, pack_checkout, pack_job, path_of
from tests.vm.image import Guest

QEMU: Final = "qemu-system-x86_64"
SECURITY: Final = "landlock,lockdown,yama,integrity,apparmor,bpf"
APPEND: Final = f"console=ttyS0 quiet panic=-1 reboot=t nokaslr lsm={SECURITY}"
SCRATCH: Final = 8 << 30
_RESULT: Final = re.compile(rb"result (\d+) (\d+)\n")


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a machine: virtual CPUs, memory in MiB, what runs its instructions (`tcg` or `kvm`)."""

    cpus: int = 2
    memory: int = 3072
    accelerator: str = "tcg"


@dataclass(frozen=True, slots=True)
class Result:
    """The job's exit status and its report, empty when it wrote none."""

    code: int
    report: bytes


def parse_result(told: bytes) -> Result | None:
    """None unless it is whole."""
    head = _RESULT.match(told)
    if head is None or len(told) - head.end() != int(head[2]):
        return None
    return Result(int(head[1]), told[head.end() :])


async def run(
    guest: Guest, job: Job, *, within: float, output: Callable[[bytes], object], shape: Shape | None = None
) -> Result:
    """Boot, run, power off. `within`: seconds for all of it; `output` gets what the job prints, as it comes.

    Raises InfraError with the end of the console when the guest tells no result in time; MissingTool.
    """
    with contextlib.ExitStack() as open_files:

        def held(descriptor: int) -> int:
            open_files.callback(os.close, descriptor)
            return descriptor

        scratch, console, result, initramfs = (held(nameless(size)) for size in (SCRATCH, 0, 0, 0))
        checkout = held(await pack_checkout())
        cargo, base = await pack_job(job)
        await asyncio.to_thread(_write, initramfs, guest.initramfs.read_bytes() + cargo)
        await erofs.run(*_MKFS, path_of(scratch), advice="apt-get install e2fsprogs")
        disks = [str(guest.root), path_of(scratch), path_of(checkout), *([str(base)] if base else [])]
        command = _command(guest, shape or Shape(), disks, *map(path_of, (initramfs, console, result)))
        in_time = await _stream(command, output, within)
        told = parse_result(os.pread(result, os.fstat(result).st_size, 0))
        if told is None:
            why = "the guest ended without a result" if in_time else f"no result within {within:g} s"
            raise InfraError(f"{why}; the end of its console:\n{_tail(console)}")
        return told


_MKFS: Final = ("mkfs.ext4", "-q", "-F", "-m0", "-Elazy_itable_init=1", "-O^has_journal")
"""Nothing on the scratch disk outlives the guest: no journal."""


def _command(
    guest: Guest, shape: Shape, disks: Sequence[str], initramfs: str, console: str, result: str
) -> list[str]:
    drives = [
        f"if=virtio,format=raw,file={disk},{'cache=unsafe' if number == 1 else 'readonly=on'}"
        for number, disk in enumerate(disks)
    ]
    threads = ",thread=multi" if shape.accelerator == "tcg" else ""
    return [
        *("setpriv", "--pdeathsig", "KILL", QEMU),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-machine", "q35"),
        *("-accel", shape.accelerator + threads, "-cpu", "max" if threads else "host"),
        *("-smp", str(shape.cpus), "-m", str(shape.memory)),
        *(
            "-kernel",
            str(guest.kernel),
            "-initrd",
            initramfs,
            "-append",
            f"{APPEND} {tsc.kernel_parameters()}",
        ),
        *(word for drive in drives for word in ("-drive", drive)),
        *("-chardev", f"file,id=console,path={console}", "-serial", "chardev:console"),
        *("-device", "virtio-serial-pci", "-device", "virtio-rng-pci"),
        *("-chardev", "file,id=output,path=/dev/stdout", "-device", "virtserialport,nr=1,chardev=output"),
        *("-chardev", f"file,id=result,path={result}", "-device", "virtserialport,nr=2,chardev=result"),
    ]


async def _stream(command: Sequence[str], output: Callable[[bytes], object], within: float) -> bool:
    """Run QEMU to its end; False when the deadline had to end it."""
    try:
        async with asyncio.timeout(within), _running(command) as process:
            assert process.stdout is not None
            while chunk := await process.stdout.read(65_536):
                output(chunk)
            await process.wait()
    except TimeoutError:
        return False
    return True


@contextlib.asynccontextmanager
async def _running(command: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=nothing, stdout=pipe, start_new_session=True
        )
    except FileNotFoundError as error:
        raise MissingTool(f"{command[0]} is not installed: apt-get install util-linux") from error
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _write(descriptor: int, data: bytes) -> None:
    Path(path_of(descriptor)).write_bytes(data)


def _tail(console: int, size: int = 800) -> str:
    length = os.fstat(console).st_size
    return os.pread(console, size, max(0, length - size)).decode(errors="replace").strip() or "(nothing)"
