"""What the inside may not see or do. Each probe is a program that must fail, or print nothing of the host."""

from __future__ import annotations

import asyncio
import os

import pytest

from dsec.sdk import Client, Sandbox
from dsec.sdk.testing.execs import processes

# a masked file of /proc is /dev/null: it can be opened, and says and does nothing
REFUSED = {
    "mount": "mount -t tmpfs none /mnt",
    "unshare": "unshare -Ur true || unshare -m true",
    "kernel memory": "head -c 1 /proc/kcore | grep -q .",
    "page flags": "head -c 8 /proc/kpageflags | grep -q . || head -c 8 /proc/kpagecgroup | grep -q .",
    "sysctl": "echo 1 > /proc/sys/kernel/panic",
    "sysrq": "test -f /proc/sysrq-trigger && echo h > /proc/sysrq-trigger",
    "agent memory": "head -c 1 /proc/1/mem || cat /proc/1/environ || cat /proc/1/fd/0",
    "devices": "mknod /tmp/disk b 254 0",
    "host name": "hostname other; test $(hostname) = other",
    "kernel log": "dmesg",
    "cgroups": "mkdir /sys/fs/cgroup/new || mkdir /sys/fs/cgroup/unified/new",
    "time": "date -s 2001-01-01",
}
PYTHON_REFUSED = {
    "packet socket": "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "vsock": "import socket; socket.socket(40, socket.SOCK_STREAM)",
    "raw socket": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "user namespace": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "bpf": "import ctypes; assert ctypes.CDLL(None, use_errno=True).syscall(321, 0, 0, 0) != -1",
    "ptrace": "import ctypes; assert ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0",
    "a way out": "import socket; socket.create_connection(('192.0.2.1', 80), 2)",
}


class IsolationSuite:
    @pytest.mark.parametrize("probe", REFUSED)
    async def test_a_privileged_act_fails(self, sandbox: Sandbox, probe: str) -> None:
        assert (await sandbox.run(REFUSED[probe], timeout=10)).code not in {0, None}

    @pytest.mark.parametrize("probe", PYTHON_REFUSED)
    async def test_a_privileged_call_fails(self, sandbox: Sandbox, probe: str) -> None:
        assert (await sandbox.run(["python3", "-c", PYTHON_REFUSED[probe]], timeout=10)).code == 1

    async def test_only_its_own_processes_are_seen(self, sandbox: Sandbox) -> None:
        assert await processes(sandbox) == 0

    async def test_only_loopback_is_there_and_it_is_up(self, sandbox: Sandbox) -> None:
        devices = (await sandbox.run(["cat", "/proc/net/dev"])).stdout.splitlines()[2:]
        assert [line.split(":")[0].strip() for line in devices] == ["lo"]
        serve = (
            "import socket; s = socket.create_server(('127.0.0.1', 0));"
            "socket.create_connection(s.getsockname())"
        )
        assert (await sandbox.run(["python3", "-c", serve])).code == 0

    async def test_root_inside_is_nobody_outside(self, sandbox: Sandbox) -> None:
        mapping = (await sandbox.run(["cat", "/proc/self/uid_map"])).stdout.split()
        assert mapping[0] == "0"
        assert int(mapping[1]) > 65_535
        assert int(mapping[2]) == 65_536

    async def test_the_hosts_files_and_environment_are_not_there(self, sandbox: Sandbox) -> None:
        os.environ["DSEC_TEST_SECRET"] = "seen"
        assert "DSEC_TEST_SECRET" not in (await sandbox.run(["env"])).stdout
        assert (await sandbox.run(["ls", __file__])).code != 0

    async def test_nothing_of_the_platform_shows_inside(self, sandbox: Sandbox) -> None:
        told = await sandbox.run(
            "cat /proc/1/cmdline /proc/self/mountinfo /proc/net/unix; env; ls -a / /run /tmp"
        )
        assert sandbox.id not in told.stdout
        assert "nats" not in told.stdout.lower()
        assert (await sandbox.run(["find", "/", "-xdev", "-name", "*chronus*"])).stdout == ""

    async def test_a_killed_shell_and_a_replaced_one_do_not_stop_the_platform(self, sandbox: Sandbox) -> None:
        await sandbox.run("rm -f /bin/bash /bin/sh /usr/bin/bash /usr/bin/dash; kill -9 -1")
        assert (await sandbox.run(["/bin/echo", "alive"])).stdout == "alive\n"
        await sandbox.files.write("/tmp/x", b"1")
        assert await sandbox.files.read("/tmp/x") == b"1"

    async def test_two_sandboxes_do_not_see_each_other(
        self, client: Client, backend: str, sandbox: Sandbox
    ) -> None:
        await sandbox.files.write("/mine", b"1")
        async with client.sandbox(backend=backend, image="base") as other:
            assert (await other.run(["ls", "/mine"])).code != 0
            assert await processes(other) == 0

    async def test_the_descriptor_limit_holds(self, client: Client, backend: str) -> None:
        async with client.sandbox(backend=backend, image="base", limits={"nofile": 64}) as small:
            told = await small.run("ulimit -n; ulimit -Hn; ulimit -n 65 || echo no")
            assert told.stdout == "64\n64\nno\n"

    async def test_a_small_descriptor_limit_does_not_limit_the_number_of_commands(
        self, client: Client, backend: str
    ) -> None:
        async with client.sandbox(backend=backend, image="base", limits={"nofile": 16}) as small:
            results = await asyncio.gather(*(small.run("sleep 0.5") for _ in range(30)))
            assert all(result.ok for result in results)
