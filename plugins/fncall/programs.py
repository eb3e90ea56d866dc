"""What is started in a box, by language: a child of the zygote, or a program that is executed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from dsec.bus.caller import CallLimits, CallSpec
from dsec.bus.errors import InfraError, SpecError
from dsec.plugins.fncall.boxes import Box
from dsec.plugins.fncall.channel import memory
from dsec.plugins.fncall.running import Begin, cpu_seconds
from dsec.plugins.fncall.settings import GIB, KIB, MIB
from dsec.plugins.fncall.worker import Worker

ENV: Final = {  # as `native/stem.c` gives it to the zygote
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108 - inside the box, where it is private
    "TMPDIR": "/tmp",  # noqa: S108
    "LANG": "C.UTF-8",
    "USER": "call",
}
BINARY: Final = "a.out"
COMPILERS: Final = {"c": ("gcc", "main.c", ("-lm",)), "c++": ("g++", "main.cpp", ())}
FLAGS: Final = ("-O2", "-pipe")
COMPILING: Final = CallLimits(wall=60, memory=GIB, cpu=1, pids=64, tmp=256 * MIB, output=64 * KIB)
INLINE: Final = 100_000
"""Bytes of a script that are passed as an argument; the kernel takes 128 KiB."""
Files = Mapping[str, tuple[bytes, int]]
"""name -> content and mode"""


@dataclass(frozen=True, slots=True)
class Program:
    """`imports` None: `argv` is executed; otherwise `call` is given to a zygote with these libraries."""

    imports: tuple[str, ...] | None
    argv: tuple[str, ...] = ()
    call: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    files: Files = field(default_factory=dict)

    def begin(self, worker: Worker, box: Box, limits: CallLimits, result: int) -> Begin:
        """How to start it in `box`; `result`: descriptor for what a function returns."""
        if self.imports is None:
            return lambda standard: box.run(
                self.argv, self.env, standard, nofile=limits.nofile, cpu_seconds=cpu_seconds(limits)
            )
        return lambda standard: self._fork(worker, box, limits, [*standard, result])

    def _fork(self, worker: Worker, box: Box, limits: CallLimits, fds: list[int]) -> None:
        zygote = worker.zygote
        assert zygote is not None
        if not box.namespaces:
            raise InfraError("the box of a call ended before the call began; try again")
        call = memory("call", self.call)
        try:
            header = {"nofile": limits.nofile, "cpu": cpu_seconds(limits)}
            zygote.fork(box, header, [*box.namespaces, *box.place.joining, *fds, call])
        finally:
            os.close(call)


def program_of(spec: CallSpec, files: Files, binary: bytes = b"") -> Program:
    """The program of a call; `binary` is that of a language that is compiled. Raises SpecError."""
    env = {**ENV, **spec.env}
    if spec.language == "python":
        return Program(spec.imports, call=_python(spec), files=files)
    if spec.entry is not None or spec.imports:
        raise SpecError("only Python has functions and imports to be called", field="entry")
    if spec.language in COMPILERS:
        return Program(None, (f"./{BINARY}", *spec.argv), env=env, files={**files, BINARY: (binary, 0o755)})
    if spec.language == "exec":
        return Program(None, (spec.source, *spec.argv), env=env, files=files)
    return _script(spec, env, files)


def _script(spec: CallSpec, env: Mapping[str, str], files: Files) -> Program:
    shell, source = f"/bin/{spec.language}", spec.source.encode()
    if b"\0" in source:
        raise SpecError("a script has no zero bytes", field="source")
    if len(source) < INLINE:
        return Program(None, (shell, "-c", spec.source, "call", *spec.argv), env=env, files=files)
    script = f"call.{spec.language}"
    return Program(None, (shell, script, *spec.argv), env=env, files={**files, script: (source, 0o644)})


def _python(spec: CallSpec) -> bytes:
    call: dict[str, Any] = {
        "source": spec.source,
        "entry": spec.entry,
        "args": spec.args,
        "kwargs": spec.kwargs,
        "argv": spec.argv,
        "env": spec.env,
    }
    try:
        return orjson.dumps(call)
    except TypeError as error:
        raise SpecError(f"arguments are JSON: {error}", field="args") from None


def compiler_of(spec: CallSpec) -> Program:
    """What compiles the source of a call to `BINARY`."""
    compiler, name, libraries = COMPILERS[spec.language]
    argv = (compiler, *FLAGS, *spec.flags, "-o", BINARY, name, *libraries)
    return Program(None, argv, env=ENV, files={name: (spec.source.encode(), 0o644)})


def compiled_key(spec: CallSpec, layers: tuple[str, ...]) -> str:
    """Names what a compiler makes of the same source in the same image."""
    parts = (spec.language, *layers, "", *FLAGS, *spec.flags, "", spec.source)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
