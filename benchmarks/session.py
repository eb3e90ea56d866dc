"""Commands in a session, SDK to SDK, beside a bare bash fed through a pipe; and 200 sessions at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from asyncio.subprocess import PIPE
from typing import Any

from dsec.benchmarks.measure import Tell, in_flight, live, percentile
from dsec.bus.errors import InfraError
from dsec.sdk import Client, Sandbox, Session

COMMANDS, AT_ONCE, ROUNDS, SANDBOXES = 1000, 200, 10, 20


async def run(tell: Tell) -> dict[str, Any]:
    """Keys: `p50_ms`, `p99_ms` of `commands` in one session, one after the other; `floor_p50_ms`; `open_ms`;
    of so many `sessions` at once in one sandbox `opened_per_s`, `per_s` (commands), `at_once_p50_ms`; and
    with `spread_` before it the same over several sandboxes.
    """
    async with live(tell) as part, part.client() as client:
        async with client.sandbox(backend="container", image="base") as sandbox:
            alone = await _alone(tell, sandbox)
            tell(f"{AT_ONCE} sessions in one sandbox")
            together = await _many([sandbox])
        return {**alone, **await _floor(tell), **together, **await _spread(tell, client)}


async def _counted(session: Session, expected: int) -> float:
    """Seconds of a command that counts in the shell itself; its output is checked."""
    started = time.perf_counter()
    result = await session.run("echo $((n += 1))")
    if result.code != 0 or result.stdout != f"{expected}\n":
        raise InfraError(f"the session does not count to {expected}: {result}")
    return time.perf_counter() - started


async def _alone(tell: Tell, sandbox: Sandbox) -> dict[str, float]:
    tell(f"{COMMANDS} commands in one session")
    opened = time.perf_counter()
    async with sandbox.session() as session:
        open_ms = (time.perf_counter() - opened) * 1e3
        for number in range(50):
            await _counted(session, number + 1)
        samples = [1e3 * await _counted(session, 51 + number) for number in range(COMMANDS)]
    return {
        "p50_ms": round(percentile(samples, 0.5), 2),
        "p99_ms": round(percentile(samples, 0.99), 2),
        "commands": COMMANDS,
        "open_ms": round(open_ms, 2),
    }


async def _floor(tell: Tell) -> dict[str, float]:
    """The same command for a bash on the host, its end told by a line of its own."""
    tell("the floor: a bare bash")
    bash = await asyncio.create_subprocess_exec("bash", "--norc", "--noprofile", stdin=PIPE, stdout=PIPE)
    assert bash.stdin is not None
    assert bash.stdout is not None
    samples = []
    for _ in range(COMMANDS):
        started = time.perf_counter()
        bash.stdin.write(b"echo $((n += 1)); echo $?\n")
        await bash.stdout.readline()
        await bash.stdout.readline()
        samples.append((time.perf_counter() - started) * 1e3)
    bash.stdin.close()
    await bash.wait()
    return {"floor_p50_ms": round(percentile(samples, 0.5), 3)}


async def _many(sandboxes: list[Sandbox], prefix: str = "") -> dict[str, float]:
    """All sessions are open before the first command is run."""
    async with contextlib.AsyncExitStack() as stack:
        sessions = [sandboxes[number % len(sandboxes)].session() for number in range(AT_ONCE)]
        seconds = await in_flight(AT_ONCE, 32, lambda number: stack.enter_async_context(sessions[number]))
        samples: list[float] = []

        async def talk(session: Session) -> None:
            samples.extend([1e3 * await _counted(session, number + 1) for number in range(ROUNDS)])

        started = time.perf_counter()
        await asyncio.gather(*(talk(session) for session in sessions))
        took = time.perf_counter() - started
    return {
        f"{prefix}sessions": AT_ONCE,
        f"{prefix}opened_per_s": round(AT_ONCE / seconds, 1),
        f"{prefix}per_s": round(AT_ONCE * ROUNDS / took, 1),
        f"{prefix}at_once_p50_ms": round(percentile(samples, 0.5), 1),
    }


async def _spread(tell: Tell, client: Client) -> dict[str, float]:
    tell(f"{AT_ONCE} sessions over {SANDBOXES} sandboxes")
    async with contextlib.AsyncExitStack() as stack:
        sandboxes = [
            await stack.enter_async_context(client.sandbox(backend="container", image="base"))
            for _ in range(SANDBOXES)
        ]
        return await _many(sandboxes, "spread_")
