"""create + first exec + destroy of a container through the SDK, beside bare `unshare` and bubblewrap.

Three layers, user namespace, network namespace, limits. CPU is all in: node, broker, client and the inside.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from dsec.benchmarks.measure import Cpu, Tell, accounting, in_flight, live, process, scratch
from dsec.bus.errors import InfraError
from dsec.sdk import Client
from dsec.sdk.spec_args import ImageArgs, LimitArgs
from dsec.sdk.testing import platform

IMAGE: ImageArgs = {"base": "base", "workspace": "bench-task", "toolkits": ["bench-tool"]}
LIMITS: LimitArgs = {"cpu": 1.0, "memory": 512 << 20, "pids": 128}
NAMESPACES = ("--user", "--map-root-user", "--mount", "--pid", "--fork", "--net", "--ipc", "--uts")
BWRAP = (
    *("--unshare-all", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
    *("--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
)


async def run(tell: Tell) -> dict[str, Any]:
    """Keys: `cpu_ms`, `cpu_ms_by`, `per_s`, `floor_cpu_ms`, `bwrap_cpu_ms`, `cycles`."""
    with accounting() as cpu:
        floor = await _peer(cpu, tell, "unshare", *NAMESPACES, "true")
        bwrap = await _peer(cpu, tell, "bwrap", *BWRAP, "true")
        async with live(tell) as part, part.client() as client:
            await _layers(Path(part.ready["home"]))
            by = {
                n: await _cycles(cpu, client, tell, n, count) for n, count in ((1, 60), (8, 160), (32, 320))
            }
    return {
        "cpu_ms": max(cost for cost, _ in by.values()),
        "cpu_ms_by": {str(n): cost for n, (cost, _) in by.items()},
        "per_s": {str(n): rate for n, (_, rate) in by.items()},
        "floor_cpu_ms": floor,
        "bwrap_cpu_ms": bwrap,
        "cycles": 540,
    }


async def _peer(cpu: Cpu, tell: Tell, *argv: str, count: int = 100) -> float:
    tell(f"{argv[0]} x {count}")
    await process(*argv)
    before = cpu.ms()
    await in_flight(count, 1, lambda _: process(*argv))
    return round((cpu.ms() - before) / count, 2)


async def _cycles(cpu: Cpu, client: Client, tell: Tell, at_once: int, count: int) -> tuple[float, float]:
    """CPU ms a cycle and cycles a second."""

    async def cycle(_: int) -> None:
        async with client.sandbox(backend="container", image=IMAGE, limits=LIMITS) as sandbox:
            result = await sandbox.run(["true"])
            if result.code != 0:
                raise InfraError(f"true ended with {result}")

    tell(f"{count} sandboxes, {at_once} at once")
    await in_flight(at_once, at_once, cycle)
    before = cpu.ms()
    seconds = await in_flight(count, at_once, cycle)
    return round((cpu.ms() - before) / count, 2), round(count / seconds, 1)


async def _layers(home: Path) -> None:
    """A workspace and a toolkit layer, so that the image has three."""
    tree = Path(tempfile.mkdtemp(dir=scratch()))
    try:
        for kind, name in (("workspace", "bench-task"), ("toolkit", "bench-tool")):
            (tree / name).mkdir()
            (tree / name / "file").write_text(name)
            await platform.command(
                "image", "import", "--home", str(home), "--kind", kind, name, str(tree / name)
            )
    finally:
        shutil.rmtree(tree)
