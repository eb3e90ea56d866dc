"""The program that isolates calls, compiled on first use (`bus.compiled`).

`python -m dsec.plugins.fncall.build` compiles if need be and prints the path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dsec.bus.compiled import Program

SOURCE: Final = Path(__file__).parent / "native"
CALLS: Final = "calls.txt"


def binary() -> Path:
    """The path of the program. Raises MissingTool without a compiler."""
    return Program("fncall", SOURCE, inputs=(CALLS,), generate=_calls).binary()


def names() -> list[str]:
    """System calls that code of a call may make, but for those that depend on their arguments."""
    lines = (SOURCE / CALLS).read_text(encoding="ascii").splitlines()
    return [name for line in lines if not line.startswith("#") for name in line.split()]


def _calls(_: Path, scratch: Path) -> None:
    entries = "".join(f"#ifdef SYS_{name}\nSYS_{name},\n#endif\n" for name in names())
    (scratch / "calls.h").write_text(entries, encoding="ascii")


if __name__ == "__main__":
    print(binary())  # noqa: T201 (the output of this program)
