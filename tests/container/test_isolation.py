"""What a hostile command inside can see and do. Each probe is real."""

import asyncio
import ctypes
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.bus import ids
from dsec.bus.chronus.guest import Command
from dsec.bus.driver import Rootfs
from dsec.bus.errors import AgentCrippled, Unsupported
from dsec.plugins.container import driver, engine, oci
from tests.container.conftest import Bench, Box, Result, order

pytestmark = pytest.mark.node

NEWUSER, NEWNS, NEWTIME, CHILD = 0x10000000, 0x20000, 0x80, 17
CALL = """
import ctypes, os
library = ctypes.CDLL(None, use_errno=True)
print(os.strerror(ctypes.get_errno()) if library.syscall({}) < 0 else "done")
"""


async def test_only_its_own_processes_are_visible(box: Box) -> None:
    seen = (await box.run("ps", "-e", "-o", "pid,comm", "--no-headers")).out.split("\n")
    assert len([line for line in seen if line]) == 2


async def test_the_only_interface_is_loopback_and_it_is_up(box: Box) -> None:
    probe = """
import socket
s = socket.create_server(("127.0.0.1", 8080)); c = socket.create_connection(("127.0.0.1", 8080))
print([name for _, name in socket.if_nameindex()])
"""
    assert (await box.python(probe)).out == "['lo']\n"


async def test_the_host_cannot_be_reached(box: Box) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        probe = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=1)"
        assert "refused" in (await box.python(probe)).err


@pytest.mark.parametrize(
    ("what", "arguments"),
    [
        ("mount", "165, b'x', b'/tmp', b'tmpfs', 0, None"),
        ("unshare of a user namespace", f"272, {NEWUSER}"),
        ("unshare of a mount namespace", f"272, {NEWNS}"),
        ("unshare of a time namespace", f"272, {NEWTIME}"),
        ("clone with a user namespace", f"56, {NEWUSER | CHILD}, 0, 0, 0, 0"),
        ("clone with bit 32 set too", f"56, ctypes.c_ulong({NEWUSER | CHILD | 1 << 32}), 0, 0, 0, 0"),
        ("clone3", "435, 0, 0"),
        ("bpf", "321, 0, 0, 0"),
        ("perf_event_open", "298, 0, 0, 0, 0, 0"),
        ("keyctl", "250, 0, 0"),
        ("userfaultfd", "323, 1"),
        ("io_uring_setup", "425, 1, 0"),
        ("setns", "308, 0, 0"),
        ("kexec_load", "246, 0, 0, 0, 0"),
        ("open_by_handle_at", "304, 0, 0, 0"),
        ("AF_PACKET", "41, 17, 3, 0"),
        ("AF_PACKET with bit 32 set too", "41, ctypes.c_ulong(17 | 1 << 32), 3, 0"),
        ("AF_VSOCK", "41, 40, 1, 0"),
        ("AF_ALG", "41, 38, 5, 0"),
        ("raw IP", "41, 2, 3, 1"),
        ("reboot", "169, 0xfee1dead, 672274793, 0x4321fedc, 0"),
        ("a device node", "133, b'/tmp/kmem', 0o20666, 258"),
    ],
)
async def test_dangerous_calls_are_refused(box: Box, what: str, arguments: str) -> None:
    said = await box.python(CALL.format(arguments))
    assert said.out.strip() in {"Operation not permitted", "Function not implemented"}, (what, said)


async def test_the_filter_that_the_engine_compiled_once_holds_for_later_sandboxes(bench: Bench) -> None:
    async with bench.box():
        assert bench.driver._running().filter
    async with bench.box() as later:
        assert "Seccomp_filters:\t1" in (await later.run("cat", "/proc/self/status")).out
        for call in ("272, 0x10000000", "321, 0, 0, 0", "41, 17, 3, 0", "425, 1, 0"):
            assert "done" not in (await later.python(CALL.format(call))).out


async def test_capabilities_are_few_and_never_grow(box: Box) -> None:
    status = (await box.run("grep", "-E", "CapBnd|CapEff|CapAmb", "/proc/self/status")).out
    masks = {line.split()[0]: int(line.split()[1], 16) for line in status.splitlines()}
    forbidden = {
        "SYS_ADMIN": 21,
        "SYS_PTRACE": 19,
        "MKNOD": 27,
        "NET_RAW": 13,
        "NET_ADMIN": 12,
        "SYS_MODULE": 16,
    }
    for bit in forbidden.values():
        assert not (masks["CapBnd:"] | masks["CapEff:"]) >> bit & 1
    assert masks["CapAmb:"] == 0


async def test_the_agent_cannot_be_traced_read_or_killed(box: Box) -> None:
    probe = """
import ctypes, os
c = ctypes.CDLL(None, use_errno=True)
def denied(what):
    try:
        what()
    except PermissionError:
        return True
    return False
print(c.ptrace(16, 1, 0, 0) < 0, ctypes.get_errno() == 1)
print(denied(lambda: open("/proc/1/mem", "rb").read(1)), denied(lambda: os.readlink("/proc/1/exe")))
print(denied(lambda: os.readlink("/proc/1/fd/0")), denied(lambda: open("/proc/1/environ").read()))
os.kill(1, 9); os.kill(1, 11); os.kill(1, 15)
"""
    said = await box.python(probe)
    assert said.out == "True True\nTrue True\nTrue True\n", said
    await box.guest.ping()


async def test_nothing_of_the_agent_shows_as_a_file(box: Box) -> None:
    probe = """
import os
names = [name for top, _, files in os.walk("/") if not top.startswith(("/proc", "/sys")) for name in files]
print([name for name in names if "chronus" in name])
"""
    said = await box.python(probe)
    assert said.out == "[]\n"
    assert (await box.run("sh", "-c", "ls -l /proc/self/fd | grep -c memfd")).out.strip() == "0"


async def test_masked_paths_hold_nothing(box: Box) -> None:
    probe = f"""
import os
for path in {oci.MASKED!r}:
    if os.path.isdir(path):
        assert not os.listdir(path), path
    elif os.path.exists(path):
        assert not open(path, "rb").read(1), path
"""
    assert await box.python(probe) == Result(0, None, "", "")


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/overcommit_memory",
        "/proc/irq/x",
        "/sys/x",
        "/sys/fs/cgroup/x",
    ],
)
async def test_kernel_files_cannot_be_written(box: Box, path: str) -> None:
    said = await box.python(f"open({path!r}, 'w').write('1')")
    assert "Permission denied" in said.err or "Read-only" in said.err or "No such file" in said.err, said


async def test_no_file_of_the_host_is_inside(box: Box, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    assert (await box.run("cat", str(tmp_path / "secret"))).code == 1
    mounts = (await box.run("cat", "/proc/self/mountinfo")).out
    assert " - cgroup" not in mounts
    assert " - ext4" not in mounts


async def test_a_user_can_become_root_inside_and_is_nobody_outside(box: Box) -> None:
    status = (await box.run("cat", "/proc/self/uid_map")).out.split()
    assert status == ["0", str(box.rootfs.uid_base), "65536"]
    assert "NoNewPrivs:\t0" in (await box.run("cat", "/proc/self/status")).out


async def test_core_files_are_off_and_the_host_name_tells_nothing(box: Box) -> None:
    assert (await box.run("sh", "-c", "ulimit -c; hostname")).out == "0\nsandbox\n"


@pytest.mark.parametrize("name", oci.MOUNT_POINTS)
async def test_an_image_with_a_symlink_for_a_mount_point_is_refused(
    bench: Bench, tmp_path: Path, name: str
) -> None:
    sandbox, tree = ids.sandbox_on("n-test"), tmp_path / "tree"
    tree.mkdir()
    (tree / name).symlink_to("/tmp")
    with pytest.raises(Unsupported, match=f"/{name} of the image"):
        await bench.driver.create(order(sandbox), Rootfs(tree, tree, 1_000_000))
    assert sandbox not in await bench.driver.leftovers()


@pytest.fixture
async def piped(bench: Bench) -> AsyncIterator[tuple[str, Rootfs]]:
    """A root file system whose user database is a pipe that nobody writes to."""
    sandbox = ids.sandbox_on("n-test")
    rootfs = await bench.rootfs(sandbox)
    (rootfs.upper / "etc").mkdir()
    os.mkfifo(rootfs.upper / "etc/passwd")
    yield sandbox, rootfs
    await bench.driver.destroy(sandbox)
    await bench.images.release(sandbox)


async def test_a_user_database_that_is_a_pipe_holds_nothing_up(
    bench: Bench, piped: tuple[str, Rootfs]
) -> None:
    sandbox, rootfs = piped
    async with asyncio.timeout(5):
        await bench.driver.create(order(sandbox), rootfs)


async def test_an_engine_that_the_image_holds_up_is_ended(
    bench: Bench, piped: tuple[str, Rootfs], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "NAMES", ("runc",))  # it reads the user database in any case
    monkeypatch.setattr(driver, "START_WITHIN", 1.0)
    sandbox, rootfs = piped
    async with asyncio.timeout(10):
        with pytest.raises(AgentCrippled):
            await bench.driver.create(order(sandbox), rootfs)
    assert sandbox not in await bench.driver.leftovers()


async def test_what_one_sandbox_watches_is_not_counted_against_the_others_and_the_host(bench: Bench) -> None:
    hog = """
import ctypes, time
libc = ctypes.CDLL(None)
while True:
    if libc.inotify_init() < 0:
        time.sleep(0.01)
"""
    one = "import ctypes; print(ctypes.CDLL(None).inotify_init() >= 0)"
    async with bench.box() as box, bench.box() as other:
        command = Command(argv=("python3", "-c", hog))
        taking = await box.guest.start(ids.exec_of(ids.new_operation()), command)
        try:
            async with asyncio.timeout(10):
                while (await box.python(one)).out == "True\n":  # noqa: ASYNC110 - only asking tells
                    await asyncio.sleep(0.05)
            assert (await other.python(one)).out == "True\n"
            mine = ctypes.CDLL(None).inotify_init()
            assert mine >= 0
            os.close(mine)
        finally:
            await taking.release()
