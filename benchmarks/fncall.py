"""Stateless calls through the SDK, beside `python3 -c` per call; the isolation probes pass in the same run.

Every call is a fork with namespaces, mounts, limits and a network of its own, which has ended with all it
left before the call is answered. Rates are at `AT_ONCE` calls in flight, medians of one at a time.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from dsec.benchmarks.measure import Tell, in_flight, percentile, process, scratch
from dsec.bus.errors import InfraError
from dsec.sdk import Client
from dsec.sdk.testing import platform
from dsec.sdk.testing.plugin import add_functions, default_functions
from dsec.sdk.testing.probes import PROBES

AT_ONCE: Final = 4
CALLS: Final = 600
CASES: Final = 100
SUM: Final = "a, b = map(int, input().split())\nprint(a + b)\n"
SUM_C: Final = (
    '#include <stdio.h>\nint main(void) { long a, b; scanf("%ld%ld", &a, &b); printf("%ld\\n", a + b); }\n'
)
Call = Callable[[int], Awaitable[object]]


def plus_one(number: int) -> int:
    return number + 1


def total(number: int) -> float:
    import numpy as np  # type: ignore[import-not-found]  # noqa: PLC0415 - of the image, not of this process

    return float(np.arange(number).sum())


async def run(tell: Tell) -> dict[str, Any]:
    """Keys: `probes`, `per_s`, `p50_ms`, `numpy_per_s`, `numpy_p50_ms`, `worker_mb`, `judge_cases_per_s`,
    `judge_python_cases_per_s`, `python3_c_per_s`, `python3_c_ms`, `calls`.

    Raises InfraError when a probe fails: figures without isolation are worth nothing.
    """
    beside = await _rate(tell, "python3 -c", lambda _: process("python3", "-c", "pass"), 100)
    async with _live(tell) as part, part.client() as client:
        probes = await _probes(tell, client)
        plain = await _rate(tell, "calls", lambda number: _called(client, plus_one, number, number + 1))
        numpy = await _rate(
            tell,
            "calls with numpy imported",
            lambda _: _called(client, total, 100, 4950.0, imports=["numpy"]),
            CALLS // 2,
        )
        worker = _largest_worker_mb(part.process.pid)
        judged = {language: await _judged(tell, client, language) for language in ("c", "python")}
    return {
        "probes": probes,
        "per_s": plain[0],
        "p50_ms": plain[1],
        "numpy_per_s": numpy[0],
        "numpy_p50_ms": numpy[1],
        "worker_mb": worker,
        "judge_cases_per_s": judged["c"],
        "judge_python_cases_per_s": judged["python"],
        "python3_c_per_s": beside[0],
        "python3_c_ms": beside[1],
        "calls": CALLS,
    }


@contextlib.asynccontextmanager
async def _live(tell: Tell) -> AsyncIterator[platform.Part]:
    home = Path(tempfile.mkdtemp(prefix="dsec-bench-", dir=scratch()))
    try:
        tell("importing the image of calls")
        await add_functions(home, await default_functions())
        tell("starting the platform")
        async with platform.running(home) as part:
            yield part
    finally:
        shutil.rmtree(home, ignore_errors=True)


async def _probes(tell: Tell, client: Client) -> dict[str, str]:
    """All of them, each with `ok`."""
    found = {}
    for name, probe in PROBES.items():
        tell(f"probe {name}")
        found[name] = await probe(client) or "ok"
    failed = {name: why for name, why in found.items() if why != "ok"}
    if failed:
        raise InfraError(f"isolation does not hold: {failed}")
    return found


async def _called(client: Client, function: Any, argument: Any, wanted: Any, **more: Any) -> None:
    result = await client.call(function, argument, **more)
    if result.value != wanted:
        raise InfraError(f"a call returned {result.told}")


async def _rate(tell: Tell, what: str, call: Call, count: int = CALLS) -> tuple[float, float]:
    """Calls a second at `AT_ONCE` in flight, and the median milliseconds of one alone."""
    tell(f"{what} x {count}")
    times: list[float] = []

    async def timed(number: int) -> None:
        began = time.perf_counter()
        await call(number)
        times.append(1000 * (time.perf_counter() - began))

    await in_flight(3 * AT_ONCE, AT_ONCE, call)
    await in_flight(count // 2, 1, timed)
    seconds = await in_flight(count, AT_ONCE, call)
    return round(count / seconds, 1), round(percentile(times, 0.5), 2)


async def _judged(tell: Tell, client: Client, language: Any) -> float:
    """Cases a second of a judge of `CASES`, compiled before."""
    source = SUM_C if language == "c" else SUM
    cases = [(f"{number} 2", str(number + 2)) for number in range(CASES)]
    tell(f"judge of {CASES} cases in {language}")
    await client.judge(source, cases[:8], language=language)
    rates = []
    for _ in range(3):
        began = time.perf_counter()
        judged = await client.judge(source, cases, language=language)
        rates.append(CASES / (time.perf_counter() - began))
        if judged.passed != CASES:
            raise InfraError(f"{judged.passed} of {CASES} cases were accepted: {judged.detail}")
    return round(percentile(rates, 0.5), 1)


def _largest_worker_mb(pid: int) -> float:
    """Megabytes (proportional set size) of the own processes of the largest worker below `pid`."""
    sizes: dict[str, float] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            group = _stem(entry)
            if group and _descends(int(entry.name), pid):
                rollup = (entry / "smaps_rollup").read_text()
                pss = next(line for line in rollup.splitlines() if line.startswith("Pss:"))
                sizes[group] = sizes.get(group, 0.0) + int(pss.split()[1]) / 1000
    return round(max(sizes.values(), default=0.0), 1)


def _stem(entry: Path) -> str:
    """The worker to whose own processes it belongs, else empty."""
    for line in (entry / "cgroup").read_text().splitlines():
        path = line.split(":", 2)[2]
        if path.startswith("/dsec/") and path.endswith("/stem"):
            return path
    return ""


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        pid = int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return False
