"""`python -m examples.swe_rollouts`: the main job from nothing to a table of rewards.

Exits with 0 if every agent got what it is worth, 1 if not, 2 if the platform could not do its part, 130
if interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dsec.bus.errors import DsecError

from . import installation, material, report
from .agents import AGENTS, spoiled
from .rollout import Gate, Outcome, Plan, Trainer, run_all
from .tasks import TASKS, Task

BUILD = Path("build/demo")


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="swe_rollouts", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=80, metavar="N")
    parser.add_argument("--concurrency", type=int, metavar="N", help="rollouts at once (default: all)")
    parser.add_argument("--report", type=Path, default=BUILD / "report.json", metavar="FILE")
    parser.add_argument("--home", type=Path, default=BUILD / "home", metavar="DIR", help="on a real disk")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="NAME")
    parser.add_argument("--spoil", action="store_true", help="leave out half of the reference's patch")
    parser.add_argument("--json", action="store_true", help="print the report as one line at the end")
    given = parser.parse_args(arguments)
    if given.rollouts < 1 or (given.concurrency is not None and given.concurrency < 1):
        parser.error("--rollouts and --concurrency are at least 1")
    return given


def plans(tasks: Sequence[Task], count: int, *, spoil: bool) -> list[Plan]:
    """`count` plans: all pairs of task and agent in turn, repeated for as long as it takes."""
    agents = dict(AGENTS)
    if spoil:
        agents = {
            "spoiled": spoiled,
            **{name: agent for name, agent in agents.items() if name != "reference"},
        }
    pairs = [(task, name) for task in tasks for name in agents]
    chosen = [pairs[index % len(pairs)] for index in range(count)]
    return [Plan(index, task, name, agents[name]) for index, (task, name) in enumerate(chosen)]


async def run(given: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The whole job. Raises DsecError when the platform could not be made ready."""
    tasks = [TASKS[name] for name in given.tasks]
    todo = plans(tasks, given.rollouts, spoil=given.spoil)
    concurrency = min(given.concurrency or len(todo), len(todo))
    began = time.monotonic()
    await asyncio.to_thread(material.ensure, tasks)
    async with installation.temporary(given.home) as home:
        layers = await installation.import_layers(home, tasks, console.print)
        async with (
            installation.running(home, console.print) as ready,
            installation.connected(ready) as client,
        ):
            started = time.monotonic()
            trainer = Trainer(client, layers, Gate(concurrency), token_hex(4))
            outcomes = await _watched(trainer, todo, concurrency, console)
            finished = time.monotonic()
    console.print(report.rewards(outcomes), report.latencies(outcomes))
    return report.to_json(
        outcomes,
        alive_at_once=trainer.gate.peak,
        setup_s=round(started - began, 2),
        rollouts_s=round(finished - started, 2),
        seconds=round(time.monotonic() - began, 2),
    )


async def _watched(
    trainer: Trainer, todo: Sequence[Plan], concurrency: int, console: Console
) -> list[Outcome]:
    columns = (
        TextColumn("rollouts"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("rollouts", total=len(todo), note="")

        def done(outcome: Outcome) -> None:
            progress.update(bar, advance=1, note=f"{outcome.task} {outcome.agent}: {outcome.reward}")

        return await run_all(trainer, todo, concurrency, done)


def main(arguments: Sequence[str] | None = None) -> int:
    given = options(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    console = Console(stderr=True)
    try:
        result = asyncio.run(run(given, console))
    except DsecError as error:
        console.print(f"[red]{error.failure.value}[/red]: {error.message}")
        return 2
    except KeyboardInterrupt:
        console.print("interrupted; nothing is left running")
        return 130
    report.write(given.report, result)
    console.print(f"{given.report}: {result['alive_at_once']} alive at once, {result['seconds']} s in all")
    if given.json:
        print(json.dumps(result))
    return 0 if result["as_expected"] else 1


if __name__ == "__main__":
    sys.exit(main())
