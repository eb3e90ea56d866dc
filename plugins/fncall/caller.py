"""`FnCaller`: stateless calls on this node (`bus.caller.Caller`).

A call goes through a runner: room on the node, a warm worker of its project, a box. What is compiled is
compiled once for the same source, and kept as the project's artefact.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import math
import os
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final, Self

from dsec.bus.caller import CallLimits, CallResult, CallSpec, Compiled
from dsec.bus.driver import Images
from dsec.bus.errors import DeadlineExceeded, MissingTool, NoSuchArtefact, SpecError, TooLarge
from dsec.bus.layers import resolve
from dsec.bus.spec import Image
from dsec.bus.userns import UserNamespaces
from dsec.plugins.fncall.artefacts import Artefacts
from dsec.plugins.fncall.build import binary
from dsec.plugins.fncall.devices import Devices, declared
from dsec.plugins.fncall.groups import Groups
from dsec.plugins.fncall.judge import Judging, checker_spec, decoded
from dsec.plugins.fncall.pool import Pool
from dsec.plugins.fncall.programs import (
    BINARY,
    COMPILERS,
    COMPILING,
    Files,
    Program,
    compiled_key,
    compiler_of,
    program_of,
)
from dsec.plugins.fncall.room import Room
from dsec.plugins.fncall.runner import MOST_RESULT, Home, Ran, Runner
from dsec.plugins.fncall.settings import DEFAULT_IMAGE, Settings
from dsec.plugins.fncall.single import encoded, result_of
from dsec.plugins.fncall.worker import Tools

KERNEL: Final = (5, 14)
"""The first kernel with what boxes use; composing an image may need a later one."""
REMEMBERED: Final = 4096
"""Programs of which it is known what they were compiled to."""
SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class FnCaller:
    """See the module; made by `running`."""

    def __init__(
        self, images: Images, node: str, runner: Runner, artefacts: Artefacts, settings: Settings
    ) -> None:
        self._images = images
        self._node = node
        self._runner = runner
        self._artefacts = artefacts
        self._settings = settings
        self.devices = Devices(settings.devices)
        self._compiled: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._compiling: dict[tuple[str, str], asyncio.Lock] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, home: Path, images: Images, node: str, settings: Settings | None = None
    ) -> AsyncIterator[Self]:
        """Takes calls while the block runs; then nothing of any call is left. Raises MissingTool."""
        chosen = settings or Settings(devices=declared(home / "devices.json"))
        _check()
        groups, namespaces = Groups.here(home), UserNamespaces()
        await asyncio.to_thread(groups.sweep)
        program = await asyncio.to_thread(_sealed, binary())
        try:
            async with Pool.running(images, Tools(groups, namespaces, program), node, chosen) as pool:
                room = Room(chosen.at_once, chosen.memory, chosen.waiting)
                artefacts = Artefacts(home / "artefacts", chosen.artefact_bytes)
                yield cls(images, node, Runner(pool, room, chosen), artefacts, chosen)
        finally:
            os.close(program)
            namespaces.close()
            groups.close()

    async def call(self, project: str, spec: CallSpec, deadline: float) -> CallResult:
        """See `bus.caller.Caller`."""
        _refuse(spec)
        gpu = spec.gpu
        image = await resolve(self._images, project, spec.image or Image(base=DEFAULT_IMAGE))
        home = Home(project, image)
        try:
            async with asyncio.timeout(max(0.0, deadline - time.time())):
                if gpu is None:
                    done = await self._done(home, spec, deadline)
                else:
                    async with self.devices.taken(gpu) as device:
                        equipped = dataclasses.replace(home, device=device)
                        done = await self._done(equipped, with_env(spec, dict(device.env)), deadline)
        except TimeoutError:
            raise DeadlineExceeded("the call did not end before the request's deadline") from None
        return done.model_copy(update={"node": self._node})

    async def _done(self, home: Home, spec: CallSpec, deadline: float) -> CallResult:
        files = await self._files(home.project, spec)
        program, compiled = await self._program(home, spec, files, deadline)
        if program is None:
            assert compiled is not None
            verdict = "CE" if spec.judge else None
            return CallResult(
                ended="compile", detail="it does not compile", compiled=compiled, verdict=verdict
            )
        if spec.judge is not None:
            done = await self._judged(home, spec, program, deadline)
        else:
            done = await self._single(home, spec, program, deadline)
        return done.model_copy(update={"compiled": compiled})

    async def _single(self, home: Home, spec: CallSpec, program: Program, deadline: float) -> CallResult:
        stdin = decoded(spec.stdin, "stdin")
        wanted = (*spec.outputs, *spec.keep)
        ran = await self._runner.run(home, program, spec.limits, deadline, stdin=stdin, collect=wanted)
        done = result_of(ran, function=spec.entry is not None)
        if not ran.files:
            return done
        kept = {
            name: await self._artefacts.put(home.project, ran.files[name])
            for name in spec.keep
            if name in ran.files
        }
        return done.model_copy(update={"files": _brought(ran.files, spec.outputs), "artefacts": kept})

    async def _judged(self, home: Home, spec: CallSpec, program: Program, deadline: float) -> CallResult:
        async def run(program: Program, limits: CallLimits, stdin: bytes) -> Ran:
            # once begun, a judge waits for places as long as it may: to begin anew would cost more
            return await self._runner.run(home, program, limits, deadline, stdin=stdin, patience=math.inf)

        assert spec.judge is not None
        asked, check = checker_spec(spec.judge.checker, spec), None
        if asked is not None:
            check, compiled = await self._program(home, asked, {}, deadline)
            if check is None:
                said = compiled.log if compiled else ""
                raise SpecError(f"the checker does not compile: {said[-500:]}", field="judge.checker.source")
        return await Judging(spec, program, check, run, self._settings.at_once).result()

    async def _files(self, project: str, spec: CallSpec) -> Files:
        """What the call finds in its working directory. Raises SpecError, NoSuchArtefact."""
        found = {}
        for name, file in spec.files.items():
            if file.artefact is not None:
                content = await self._artefacts.get(project, file.artefact)
            else:
                content = decoded(file.data or "", f"files.{name}")
            found[name] = (content, 0o755 if file.executable else 0o644)
        return found

    # --- compiling

    async def _program(
        self, home: Home, spec: CallSpec, files: Files, deadline: float
    ) -> tuple[Program | None, Compiled | None]:
        """The program, None when it does not compile, and what the compiler said, if one was needed."""
        if spec.language not in COMPILERS:
            return program_of(spec, files), None
        key = (home.project, compiled_key(spec, home.image.layers))
        lock = self._compiling.setdefault(key, asyncio.Lock())
        try:
            async with lock:  # the same source is compiled once, however many ask for it now
                code, compiled = await self._binary(home, spec, key, deadline)
        finally:
            if not lock.locked():
                self._compiling.pop(key, None)
        return (program_of(spec, files, code), compiled) if compiled.ok else (None, compiled)

    async def _binary(
        self, home: Home, spec: CallSpec, key: tuple[str, str], deadline: float
    ) -> tuple[bytes, Compiled]:
        if (digest := self._compiled.get(key)) is not None:
            with contextlib.suppress(NoSuchArtefact):
                return await self._artefacts.get(home.project, digest), Compiled(ok=True, cached=True)
        ran = await self._runner.run(home, compiler_of(spec), COMPILING, deadline, collect=(BINARY,))
        log = ran.outcome.stderr.decode(errors="replace")
        wall = round(ran.outcome.wall_ms, 3)
        if ran.outcome.code != 0 or ran.outcome.why or BINARY not in ran.files:
            return b"", Compiled(ok=False, log=log or ran.outcome.why, wall_ms=wall)
        code = ran.files[BINARY]
        self._compiled[key] = await self._artefacts.put(home.project, code)
        while len(self._compiled) > REMEMBERED:
            self._compiled.popitem(last=False)
        return code, Compiled(ok=True, log=log, wall_ms=wall)


def with_env(spec: CallSpec, env: Mapping[str, str]) -> CallSpec:
    """What a device wants a program to know, and what the call itself sets over that."""
    return spec.model_copy(update={"env": {**env, **spec.env}})


def _refuse(spec: CallSpec) -> None:
    """Raises SpecError for what does not go together."""
    if spec.judge is not None and (spec.entry is not None or spec.outputs or spec.keep):
        raise SpecError("a judge runs a program: it has no entry, outputs or artefacts", field="judge")
    if spec.language != "python" and (spec.args or spec.kwargs):
        raise SpecError("only functions have args; a program has argv", field="args")


def _brought(files: dict[str, bytes], names: tuple[str, ...]) -> dict[str, str]:
    there = [name for name in names if name in files]
    total = sum(len(files[name]) for name in there)
    if total > MOST_RESULT:
        raise TooLarge(
            f"outputs have {total} bytes, an answer takes {MOST_RESULT}: keep them", field="outputs"
        )
    return {name: encoded(files[name]) for name in there}


def _check() -> None:
    if os.geteuid() != 0:
        raise MissingTool("calls are isolated by root only")
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) < KERNEL:
        raise MissingTool(f"calls need Linux {KERNEL[0]}.{KERNEL[1]} or later")
    if int(Path("/proc/sys/user/max_user_namespaces").read_text(encoding="ascii")) == 0:
        raise MissingTool("user namespaces are switched off: sysctl user.max_user_namespaces=65536")


def _sealed(program: Path) -> int:
    """Descriptor of a copy in memory that nothing inside can change."""
    copy = os.memfd_create("fncall", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(copy, program.read_bytes())
    fcntl.fcntl(copy, fcntl.F_ADD_SEALS, SEALS)
    return copy
