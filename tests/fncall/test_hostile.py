"""A library that a project has packed, hostile when it is imported: before any call is confined."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dsec.bus.errors import LimitError, SpecError
from dsec.plugins.images import ErofsImages
from tests.fncall.conftest import Calls, calling

pytestmark = pytest.mark.node
EVIL = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)

def attempt(result):
    return errno.errorcode[ctypes.get_errno()] if result < 0 else ""

def opened(path, mode):
    try:
        open(path, mode)
    except OSError as error:
        return errno.errorcode[error.errno]
    return ""

FOUND = {
    "mount": attempt(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)),
    "unshare": attempt(libc.unshare(0x10000000)),
    "clone": attempt(libc.syscall(56, 0x20000011, 0, 0, 0, 0)) if "x86" in os.uname().machine else "EPERM",
    "kill stem": attempt(libc.kill(1, 9)),
    "kill all": attempt(libc.kill(-1, 9)),
    "ptrace": attempt(libc.ptrace(16, 1, 0, 0)),
    "memory of the stem": opened("/proc/1/mem", "r+b"),
    "namespace of the stem": opened("/proc/1/ns/mnt", "rb"),
    "write": opened("/etc/passwd", "r+b"),
    "setuid": attempt(libc.setuid(0)),
    "reboot": attempt(libc.syscall(169, 0xfee1dead, 672274793, 0x1234567, 0)),
    "swap": attempt(libc.swapoff(b"/dev/x")),
    "host name": attempt(libc.sethostname(b"evil", 4)),
}
with open("/proc/self/status") as status:
    RIGHTS = [line.split()[1] for line in status if line.startswith(("CapEff", "CapBnd"))]
PIDS = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
"""


@pytest.fixture
async def evil(images: ErofsImages, tmp_path: Path) -> AsyncIterator[Calls]:
    packages = tmp_path / "layer" / "usr" / "lib" / "python3" / "dist-packages"
    packages.mkdir(parents=True)
    (packages / "evil.py").write_text(EVIL)
    (packages / "endless.py").write_text("while True: pass\n")
    (packages / "huge.py").write_text("X = bytearray(4 << 30)\n")
    (packages / "deadly.py").write_text("import os; os.kill(os.getpid(), 9)\n")
    await images.import_tree("evil-libraries", tmp_path / "layer", "toolkit")
    async with calling(images, tmp_path / "calls", warm_within=5.0) as call:
        yield call


IMAGE: dict[str, Any] = {"base": "functions", "toolkits": ["evil-libraries"]}


async def test_a_hostile_library_can_do_nothing_to_what_holds_it(evil: Calls) -> None:
    source = "import evil\ndef f():\n    return evil.FOUND, evil.RIGHTS, evil.PIDS\n"
    found, rights, pids = (await evil(source, entry="f", imports=["evil"], image=IMAGE)).value
    assert {name: error for name, error in found.items() if error in {"", "EINVAL"}} == {}
    assert rights == ["0000000000200000", "0000000000200000"]  # CAP_SYS_ADMIN over its worker, for setns
    assert max(pids) < 100
    assert (await evil(source, entry="f", imports=["evil"], image=IMAGE)).warm


@pytest.mark.parametrize(
    ("library", "error"), [("endless", LimitError), ("huge", SpecError), ("deadly", SpecError)]
)
async def test_a_library_that_does_not_get_imported_is_the_project_s_own_fault(
    evil: Calls, library: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await evil("1", imports=[library], image=IMAGE)
    assert (await evil("1", image=IMAGE)).code == 0
