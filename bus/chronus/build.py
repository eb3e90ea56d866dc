"""The chronus binary: compiled on first use, kept in a cache by the hash of its source (`bus.compiled`).

`python -m dsec.bus.chronus.build` compiles if need be and prints the path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dsec.bus.compiled import Program

SOURCE: Final = Path(__file__).parent


def binary() -> Path:
    """The path of a static chronus made from the present source. Raises MissingTool without a compiler."""
    return Program("chronus", SOURCE).binary()


if __name__ == "__main__":
    print(binary())  # noqa: T201 (the output of this program)
