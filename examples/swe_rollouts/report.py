"""What a run leaves to read: the table of rewards, a table of latencies, and `report.json`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from .rollout import Outcome

STAGES = (
    "create",
    "exec",
    "solve",
    "pause",
    "pack",
    "destroy",
    "grade_create",
    "grade",
    "grade_destroy",
)


def rewards(outcomes: Sequence[Outcome]) -> Table:
    """A row per task, a column per agent: the rewards it got."""
    agents = list(dict.fromkeys(one.agent for one in outcomes))
    table = Table("task", *agents, title="rewards")
    for task in dict.fromkeys(one.task for one in outcomes):
        cells = [
            _cell([one for one in outcomes if (one.task, one.agent) == (task, agent)]) for agent in agents
        ]
        table.add_row(task, *cells)
    return table


def _cell(outcomes: Sequence[Outcome]) -> str:
    text = " ".join("-" if one.reward is None else str(one.reward) for one in outcomes)
    return text if all(one.right for one in outcomes) else f"[red]{text}[/red]"


def latencies(outcomes: Sequence[Outcome]) -> Table:
    table = Table("stage", "p50 ms", "p95 ms", "most ms", title="latencies")
    for stage, (middle, high, most) in summary(outcomes).items():
        table.add_row(stage, f"{middle:.1f}", f"{high:.1f}", f"{most:.1f}")
    return table


def summary(outcomes: Iterable[Outcome]) -> dict[str, tuple[float, float, float]]:
    """Stage -> median, 95th percentile and maximum, in milliseconds, of those that came so far."""
    seen = [one.latencies for one in outcomes]
    values = {stage: sorted(one[stage] for one in seen if stage in one) for stage in STAGES}
    return {
        stage: (statistics.median(found), found[int(len(found) * 0.95)], found[-1])
        for stage, found in values.items()
        if found
    }


def to_json(outcomes: Sequence[Outcome], **about: Any) -> dict[str, Any]:
    """The report: `about`, the latencies' summary, and one entry in `rollouts` for each outcome."""
    return {
        **about,
        "as_expected": all(one.right for one in outcomes),
        "latencies": {
            stage: dict(zip(("p50_ms", "p95_ms", "max_ms"), found, strict=True))
            for stage, found in summary(outcomes).items()
        },
        "rollouts": [one.to_json() for one in outcomes],
    }


def write(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
