"""The tasks: pairs of public source releases, and the test ids that tell whether a task is solved.

A task is the older release with the tests of the newer one; the newer release's sources are its solution.
Which tests count is not written here by hand: `recount.py` finds out and keeps it in `expected/*.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

EXPECTED = Path(__file__).parent / "expected"


@dataclass(frozen=True, slots=True)
class Release:
    """One source release of a distribution and the sha256 (hex) of its `.tar.gz`."""

    distribution: str
    version: str
    sha256: str

    @property
    def stem(self) -> str:
        return f"{self.distribution}-{self.version}"


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the one place in `path` that reads `before`."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Task:
    """`package` and `tests` are directories of the release; only `package` may be changed by an agent.

    `misled`: what an agent does that read the issue and not the code.
    """

    older: Release
    newer: Release
    package: str
    tests: str
    misled: Edit

    @property
    def name(self) -> str:
        return self.older.distribution

    @property
    def root(self) -> str:
        """Where the task stands inside a sandbox."""
        return f"/workspace/{self.name}"

    @property
    def allowed(self) -> tuple[str, ...]:
        """Absolute paths that grading takes over from a solved sandbox; everything else is thrown away."""
        return (f"{self.root}/{self.package}",)


@dataclass(frozen=True, slots=True)
class Expected:
    """Test ids. `all`: what a grading runs, in the suite's order, on which some suites depend.
    `solved`: those that fail before and pass after; the others pass both times."""

    all: tuple[str, ...]
    solved: frozenset[str]

    @property
    def kept(self) -> frozenset[str]:
        return frozenset(self.all) - self.solved


def load_expected(task: Task) -> Expected:
    data = json.loads((EXPECTED / f"{task.name}.json").read_text())
    return Expected(tuple(data["tests"]), frozenset(data["fail_to_pass"]))


_ALL = (
    Task(
        Release("sqlparse", "0.4.4", "d446183e84b8349fa3061f0fe7f06ca94ba65b426946ffebe6e3e8295332420c"),
        Release("sqlparse", "0.5.0", "714d0a4932c059d16189f58ef5411ec2287a4360f17cdd0edd2d09d4c5087c93"),
        package="sqlparse",
        tests="tests",
        misled=Edit(
            "sqlparse/__init__.py",
            "def split(sql, encoding=None):",
            "def split(sql, encoding=None, strip_semicolon=False):",
        ),
    ),
    Task(
        Release(
            "more-itertools", "10.1.0", "626c369fa0eb37bac0291bce8259b332fd59ac792fa5497b59837309cd5b114a"
        ),
        Release(
            "more-itertools", "10.2.0", "8fccb480c43d3e99a00087634c06dd02b0d50fbf088b380de5a41a015ec239e1"
        ),
        package="more_itertools",
        tests="tests",
        misled=Edit(
            "more_itertools/recipes.py",
            "def iter_index(iterable, value, start=0):",
            "def totient(n):\n    return n - 1\n\n\ndef iter_index(iterable, value, start=0, stop=None):",
        ),
    ),
    Task(
        Release("parso", "0.8.3", "8c07be290bb59f03588915921e29e8a50002acaf2cdc5fa0e0114f91709fafa0"),
        Release("parso", "0.8.4", "eb3a7b58240fb99099a345571deecc0f9540ea5f4dd2fe14c2a99d6b281ab92d"),
        package="parso",
        tests="test",
        misled=Edit("parso/python/errors.py", 'return "Ellipsis"', 'return "ellipsis"'),
    ),
    Task(
        Release("wcwidth", "0.2.12", "f01c104efdf57971bcb756f054dd58ddec5204dd15fa31d6503ea57947d97c02"),
        Release("wcwidth", "0.2.13", "72ea0c06399eb286d978fdedb6923a9eb47e1c486ce63e9b4e64fc18303972b5"),
        package="wcwidth",
        tests="tests",
        misled=Edit(
            "wcwidth/wcwidth.py",
            "    if 32 <= ucs < 0x7f:\n        return 1\n",
            "    if 32 <= ucs < 0x7f:\n        return 1\n    if ucs == 0x1160:\n        return 0\n",
        ),
    ),
    Task(
        Release("jmespath", "1.0.0", "a490e280edd1f57d6de88636992d05b71e97d69a26a19f058ecf7d304474bf5e"),
        Release("jmespath", "1.0.1", "90261b206d6defd58fdd5e85f478bf633a2901798906be2ad389150c5c60edbe"),
        package="jmespath",
        tests="tests",
        misled=Edit(
            "jmespath/parser.py",
            "in random.sample(self._CACHE.keys(), int(self._MAX_SIZE / 2)):",
            "in self._CACHE:",
        ),
    ),
)
TASKS: Mapping[str, Task] = MappingProxyType({task.name: task for task in _ALL})
"""Every task by name."""
