"""From a solved sandbox to a reward, without trusting anything that the agent could have touched.

The solved sandbox is frozen, the one allowed directory is packed as a layer, and the sandbox is destroyed.
A clean second one is composed of the original layers, the pack, and on top the grader's own: tests, tools
and configuration are the original ones again, since the pack holds nothing else. `inside/grade.py` runs
there; what it says is judged here, in the trainer (`verdict.py`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_hex

from dsec.bus.errors import InfraError
from dsec.bus.messages import Ended
from dsec.sdk.client import Client
from dsec.sdk.sandbox import Sandbox

from .installation import Layers
from .material import GRADER
from .tasks import Task, load_expected
from .verdict import CANARY_SOURCE, Report, Verdict, canary_ids, judge, parse_report

NOBODY = 65534
SUITE_TIMEOUT = 300.0
"""Seconds for the tests of one task, of which each takes about one; 80 may be running on two cores."""


@dataclass(slots=True)
class Stopwatch:
    """Milliseconds by the name of what took them; what was done twice is added up."""

    ms: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.ms[name] = round(self.ms.get(name, 0.0) + (time.perf_counter() - start) * 1e3, 2)


async def take_over(sandbox: Sandbox, task: Task, name: str, watch: Stopwatch) -> str:
    """Freeze the sandbox, pack the allowed paths as layer `name`, destroy it. Returns the layer's name."""
    with watch("pause"):
        await sandbox.pause(resume_on_request=False)
    with watch("pack"):
        layer = await sandbox.pack(name, task.allowed)
    with watch("destroy"):
        await sandbox.destroy()
    return layer.name


async def grade(client: Client, task: Task, layers: Layers, pack: str, watch: Stopwatch) -> Verdict:
    """Run the expected tests of `pack` in a clean sandbox, and judge. Raises InfraError, to be retried."""
    expected = load_expected(task).all
    module = f"test_{token_hex(8)}"
    canaries = canary_ids(task.tests, module)
    image = layers.clean(task, pack)
    with watch("grade_create"):
        sandbox = await client.create(
            backend="container", image=image, ttl=1800, labels={"grades": task.name}
        )
    try:
        with watch("grade"):
            canary = CANARY_SOURCE.format(package=task.package).encode()
            await sandbox.files.write(f"{task.root}/{task.tests}/{module}.py", canary)
            report = await run_tests(sandbox, task, [*expected, *canaries])
    finally:
        with watch("grade_destroy"):
            await sandbox.destroy()
    return judge(expected, canaries, report)


async def run_tests(sandbox: Sandbox, task: Task, tests: list[str]) -> Report:
    """What the grader's program in `sandbox` says of these test ids."""
    request = {"root": task.root, "tests": tests, "user": NOBODY, "timeout": SUITE_TIMEOUT}
    await sandbox.files.write(f"/{GRADER}/request.json", json.dumps(request).encode())
    command = ["/usr/bin/python3", "-I", "-B", f"/{GRADER}/grade.py", f"/{GRADER}/request.json"]
    result = await sandbox.run(command, timeout=SUITE_TIMEOUT + 60, env={"LANG": "C.UTF-8"})
    if result.ended is Ended.TIMEOUT:
        raise InfraError(f"grading {task.name} took over {SUITE_TIMEOUT + 60:.0f} s; the machine is too busy")
    return parse_report(result.stdout if result.ok else f"{result.how}: {result.stderr}")
