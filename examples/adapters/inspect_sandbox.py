"""Inspect AI's sandboxes on opendsec: import this module, then `Task(…, sandbox=("dsec", "IMAGE"))`.

One sandbox for each sample, made on whatever node has room, destroyed when the sample ends. The platform is
found as `dsec.Client` finds it (`DSEC_URL`, `DSEC_CREDENTIALS`). `inspect_ai.util.SandboxEnvironment` tells
what each method owes; what holds otherwise here is in docs/adapters.md.
"""

from __future__ import annotations

import contextlib
import posixpath
import secrets
import shlex
import stat
from pathlib import PurePath
from typing import Any, Final, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    sandboxenv,
)
from pydantic import BaseModel

import dsec
from dsec.bus.errors import GoneError, NoSuchFile, NoSuchProgram, TooLarge

WORK: Final = "/workspace"
"""The sample's directory, to which relative paths belong."""
LINKS: Final = 40
"""Symbolic links that are followed, as by the kernel."""
IDLE: Final = 6 * 3600.0
"""Seconds after which a sandbox goes that nobody has used, whatever became of the evaluation."""


class Config(BaseModel, frozen=True):
    """What a sample's sandbox is made of: arguments of `dsec.Client.create`."""

    image: str
    limits: dict[str, float] = {}
    env: dict[str, str] = {}


class Shared:
    """The one client of this process, open while any task needs it."""

    def __init__(self) -> None:
        self._tasks = 0
        self._stack = contextlib.AsyncExitStack()
        self.client: dsec.Client | None = None

    async def enter(self) -> None:
        self._tasks += 1
        if self.client is None:
            self.client = await self._stack.enter_async_context(dsec.Client())

    async def leave(self) -> None:
        self._tasks -= 1
        if self._tasks == 0:
            self.client = None
            await self._stack.aclose()


SHARED: Final = Shared()


@sandboxenv(name="dsec")
class DsecSandbox(SandboxEnvironment):
    """One sandbox of opendsec."""

    def __init__(self, sandbox: dsec.Sandbox) -> None:
        super().__init__()
        self.sandbox = sandbox

    # -- lifecycle

    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        await SHARED.enter()

    @classmethod
    async def task_cleanup(cls, task_name: str, config: Any, cleanup: bool) -> None:  # noqa: FBT001 - Inspect's
        await SHARED.leave()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return Config.model_validate(config)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        name = PurePath(str(config)).name  # Inspect takes a string for a file, and makes its path absolute
        asked = config if isinstance(config, Config) else Config(image=name)
        assert SHARED.client is not None, "Inspect calls task_init first"
        spec: dict[str, Any] = {"image": asked.image, "limits": asked.limits, "env": asked.env}
        made = await SHARED.client.create(idle_ttl=IDLE, labels={"inspect-task": task_name[:60]}, **spec)
        await made.files.mkdir(WORK)
        return {"default": cls(made)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: Any,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,  # noqa: FBT001 - Inspect's
    ) -> None:
        for environment in environments.values():
            with contextlib.suppress(GoneError):
                await environment.as_type(DsecSandbox).sandbox.destroy()

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        return SandboxConnection(type="dsec", command=f"dsec shell {self.sandbox.id}")

    def default_polling_interval(self) -> float:
        return 0.2

    # -- commands

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002 - Inspect's name
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,  # noqa: FBT001, FBT002 - Inspect's
        concurrency: bool = True,  # noqa: FBT001, FBT002 - Inspect's
    ) -> ExecResult[str]:
        options: dict[str, Any] = {
            "stdin": input,
            "cwd": posixpath.join(WORK, cwd or ""),
            "env": env,
            "user": user,
            "timeout": timeout,
        }
        try:
            result = await self._run(cmd, options)
        except NoSuchProgram as error:
            if error.field == "argv" and "ermission denied" in error.message:
                raise PermissionError(error.message) from error
            return ExecResult(success=False, returncode=127, stdout="", stderr=error.message)
        return _translated(result, cmd)

    async def _run(self, cmd: list[str], options: dict[str, Any]) -> dsec.Result:
        """A command line that is too large for a message goes through a file, which removes itself."""
        try:
            return await self.sandbox.run(cmd, **options)
        except TooLarge:
            script = f"/tmp/.dsec-{secrets.token_hex(8)}"
            await self.sandbox.files.write(script, f'rm -f -- "$0"\nexec {shlex.join(cmd)}\n', mode=0o755)
            return await self.sandbox.run(["/bin/sh", script], **options)

    # -- files

    async def write_file(self, file: str, contents: str | bytes) -> None:
        path = await self._resolved(file)
        with contextlib.suppress(NoSuchFile):
            if stat.S_ISDIR((await self.sandbox.files.stat(path)).mode):
                raise IsADirectoryError(f"{file} is a directory")
        await self.sandbox.files.write(path, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...  # noqa: FBT002 - Inspect's

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:  # noqa: FBT001, FBT002 - Inspect's
        path = await self._resolved(file)
        try:
            about = await self.sandbox.files.stat(path)
            if stat.S_ISDIR(about.mode):
                raise IsADirectoryError(f"{file} is a directory")
            if about.size > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
            raw = await self.sandbox.files.read(path)
        except NoSuchFile as error:
            raise FileNotFoundError(f"{file}: {error.message}") from error
        return raw.decode() if text else raw

    async def _resolved(self, file: str) -> str:
        """An absolute path whose last part is no symbolic link."""
        path = posixpath.normpath(posixpath.join(WORK, file))
        with contextlib.suppress(NoSuchFile):
            for _ in range(LINKS):
                target = (await self.sandbox.files.stat(path)).target
                if target is None:
                    break
                path = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        return path


def _translated(result: dsec.Result, cmd: list[str]) -> ExecResult[str]:
    """As Inspect tells an end. Raises TimeoutError, OutputLimitExceededError."""
    if result.ended is dsec.Ended.TIMEOUT:
        raise TimeoutError(f"{cmd[0]} ran into its timeout")
    most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
    if result.truncated or max(len(result.stdout_bytes), len(result.stderr_bytes)) > most:
        told = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR
        raise OutputLimitExceededError(told, result.stdout[:most])
    code = 128 + (result.signal or 0) if result.code is None else result.code
    return ExecResult(success=result.ok, returncode=code, stdout=result.stdout, stderr=result.stderr)
