"""Sets of numbers as sorted half-open ranges: `[(0, 200), (201, 1000)]`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Runs = list[tuple[int, int]]


def runs_of(numbers: Iterable[int]) -> Runs:
    """The ranges that hold exactly `numbers`, which come in any order and may repeat."""
    runs: Runs = []
    start = stop = -1
    for number in sorted(numbers):
        if number > stop or start < 0:
            if start >= 0:
                runs.append((start, stop))
            start = number
        stop = number + 1
    if start >= 0:
        runs.append((start, stop))
    return runs


def numbers_of(runs: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Every number in `runs`."""
    for start, stop in runs:
        yield from range(start, stop)


def size_of(runs: Iterable[tuple[int, int]]) -> int:
    """How many numbers `runs` hold."""
    return sum(stop - start for start, stop in runs)
