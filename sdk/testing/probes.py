"""What code of a stateless call tries, and must not achieve: a probe sends functions and judges the answers.

`PROBES[name](client)` is empty when the isolation holds, otherwise it tells what the code could do. They are
run by the suite of a `Caller` and, in the same run as the figures, by `dsec bench fncall`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from dsec.sdk import Client
from dsec.sdk.testing import inside

Probe = Callable[[Client], Awaitable[str]]
PROBES: Final[dict[str, Probe]] = {}


def probe(function: Probe) -> Probe:
    """Add it to `PROBES`."""
    PROBES[function.__name__] = function
    return function


async def told(client: Client, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """What the function returns inside. Raises FnFailed."""
    return (await client.call(function, *args, **more)).get()


def unless(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Empty when all that is wanted was found."""
    return "; ".join(
        f"{name}: {found.get(name)!r}, not {value!r}"
        for name, value in wanted.items()
        if found.get(name) != value
    )


@probe
async def processes(client: Client) -> str:
    """It sees itself and the PID 1 of its box, and can do nothing to that one."""
    found = await told(client, inside.processes)
    denied = {"kill": "EPERM", "mem": "EACCES", "environ": "EACCES", "ptrace": "EPERM", "peek": "ENOSYS"}
    return unless({"pids": [1, 2], "parent": 0, **denied}, found)


@probe
async def signals(client: Client) -> str:
    """A signal to everybody reaches neither the warm worker nor a call beside it."""
    beside = asyncio.ensure_future(client.call(inside.sleeps, 0.4))
    await told(client, inside.signals_everybody)
    kept, after = await beside, await client.call(inside.sleeps, 0)
    if not kept.returned:
        return f"a call beside it ended by {kept.ended}"
    return "" if after.told.warm else "the worker had to be started anew"


@probe
async def rights(client: Client) -> str:
    """No capability, no new privileges, a seccomp filter, another user."""
    found = await told(client, inside.rights)
    none = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapAmb"), "0000000000000000")
    return unless({**none, "NoNewPrivs": "1", "Seccomp": "2", "root": False}, found)


@probe
async def system_calls(client: Client) -> str:
    """Namespaces, mounts, tracing, bpf, keys, io_uring and raw sockets do not exist or are refused."""
    found = await told(client, inside.system_calls)
    allowed = [name for name, error in found.items() if error in {"", "EBADF", "EFAULT", "EINVAL"}]
    return f"possible: {', '.join(allowed)}" if allowed else ""


@probe
async def files(client: Client) -> str:
    """What a call writes is gone, the image cannot be written, the host's files are not there."""
    mark = secrets.token_hex(8)
    first = await told(client, inside.leaves_files, mark)
    if any(await asyncio.gather(*(told(client, inside.finds_files, mark) for _ in range(4)))):
        return "a later call found the files of an earlier one"
    return unless({"/etc": "EROFS", "/usr": "EROFS", "/": "EROFS"}, first)


@probe
async def host(client: Client) -> str:
    """No file, name, variable or device of the host."""
    paths = [
        str(Path(__file__).resolve()),
        "/sys/fs/cgroup",
        "/sys/kernel",
        "/dev/sda",
        "/dev/mem",
        "/dev/kvm",
    ]
    found = await told(client, inside.host, paths)
    return unless({"there": [], "name": "call", "foreign": [], "disks": [], "mknod": "EPERM"}, found)


@probe
async def kernel(client: Client) -> str:
    """The kernel's own files cannot be written, its memory cannot be read."""
    found = await told(client, inside.kernel)
    return f"possible: {', '.join(found)}" if found else ""


@probe
async def network(client: Client) -> str:
    """A loopback of its own, and no way anywhere else."""
    port = await _listening_port()
    found = await told(client, inside.network, port)
    wanted = {
        "devices": ["lo"],
        "host": "ECONNREFUSED",
        "away": "ENETUNREACH",
        "own": "",
        "netlink": "EAFNOSUPPORT",
    }
    return unless(wanted, found)


async def _listening_port() -> int:
    """A port of the host on which something has listened."""
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    _SERVERS.append(server)
    while len(_SERVERS) > 1:
        _SERVERS.pop(0).close()
    return port


_SERVERS: list[asyncio.Server] = []


@probe
async def unix_sockets(client: Client) -> str:
    """An abstract socket of one call cannot be reached from another one."""
    name = secrets.token_hex(8)
    listening = asyncio.ensure_future(told(client, inside.listens_abstract, name, 0.5))
    tried = [await told(client, inside.connects_abstract, name) for _ in range(3)]
    await listening
    return "it was reached" if "" in tried else ""


@probe
async def interprocess(client: Client) -> str:
    """System V shared memory of one call is not there for the next one."""
    key = secrets.randbits(30)
    made = await told(client, inside.makes_shared_memory, key)
    found = await told(client, inside.finds_shared_memory, key)
    return "" if made and not found else f"made: {made}, found by the next call: {found}"


@probe
async def cgroups(client: Client) -> str:
    """It does not see in which group it is, nor any other."""
    found = await told(client, inside.cgroups)
    return f"it sees {found}" if set(found) - {"/"} else ""


@probe
async def descriptors(client: Client) -> str:
    """Standard streams, and where the result goes."""
    found = await told(client, inside.descriptors)
    return "" if found <= 4 else f"{found} descriptors are open"


@probe
async def memory_of_others(client: Client) -> str:
    """Nothing of an earlier call is in the memory that a call begins with."""
    first, second = secrets.token_hex(12), secrets.token_hex(12)
    await told(client, inside.holds, first + second)
    found = await asyncio.gather(*(told(client, inside.searches_memory, first, second) for _ in range(4)))
    return "an argument of an earlier call was found" if any(found) else ""


@probe
async def daemons(client: Client) -> str:
    """A process that left its session and its parents ends with the call, though the call went well."""
    mark = f"{secrets.randbelow(10**9)}.25"
    result = await client.call(inside.leaves_daemon, mark)
    if not result.returned:
        return f"the call itself ended by {result.ended}"
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _has(path, mark.encode())]
    return f"{len(left)} processes live on" if left else ""


def _has(path: Path, mark: bytes) -> bool:
    try:
        return mark in path.read_bytes()
    except OSError:
        return False


@probe
async def watches(client: Client) -> str:
    """What the kernel counts per user (inotify) it counts apart from the host's."""
    taking = asyncio.ensure_future(told(client, inside.watches, limits={"nofile": 4096}))
    libc, refused = ctypes.CDLL(None, use_errno=True), 0
    while not taking.done():
        await asyncio.sleep(0.02)
        made = libc.inotify_init1(os.O_CLOEXEC)
        if made < 0:
            refused += 1
        else:
            os.close(made)
    return f"{await taking} taken inside: the host had none left" if refused else ""


@probe
async def memory_limit(client: Client) -> str:
    """Too much memory ends the call as `oom`, a limit, and nothing else."""
    result = await client.call(inside.takes_memory, 512 << 20, limits={"memory": 64 << 20})
    return unless({"ended": "oom", "failure": "limit"}, {"ended": result.ended, "failure": result.failure})


@probe
async def process_limit(client: Client) -> str:
    """Forks end at the limit."""
    found = await told(client, inside.forks, 200, limits={"pids": 32})
    return "" if 0 < found < 32 else f"{found} forks of a limit of 32"


@probe
async def disk_limit(client: Client) -> str:
    """/tmp takes no more than its limit."""
    found = await told(client, inside.fills, 64 << 20, limits={"tmp": 8 << 20, "memory": 256 << 20})
    return "" if found <= 8 << 20 else f"{found} bytes of a limit of {8 << 20}"


@probe
async def time_limit(client: Client) -> str:
    """A loop that ignores signals, with a process that does the same, ends at its time."""
    result = await client.call(inside.spins, limits={"wall": 0.5})
    return unless(
        {"ended": "timeout", "failure": "limit"}, {"ended": result.ended, "failure": result.failure}
    )
