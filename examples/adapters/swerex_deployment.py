"""SWE-ReX on opendsec: `DsecDeployment(image="IMAGE")` where a harness takes a deployment.

Sessions are those of the platform: each command has an exit code and an output of its own, without a prompt
that is searched for in the text. What a harness can tell from SWE-ReX's own runtime is in docs/adapters.md.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any, Final

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SessionNotInitializedError,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    CloseBashSessionResponse,
    CloseResponse,
    Command,
    CommandResponse,
    CreateBashSessionRequest,
    CreateBashSessionResponse,
    IsAliveResponse,
    ReadFileRequest,
    ReadFileResponse,
    UploadRequest,
    UploadResponse,
    WriteFileRequest,
    WriteFileResponse,
)
from swerex.utils.log import get_logger

import dsec
from dsec.bus.errors import DsecError, GoneError, NoSuchFile, NoSuchProgram, SessionEnded

SIGINT: Final = 2


class Shell:
    """One session, and the command that runs in it."""

    def __init__(self, session: dsec.Session) -> None:
        self.session = session
        self.running: dsec.Exec | None = None

    async def run(self, command: str, timeout: float | None = None) -> tuple[dsec.Result, str]:
        """Its end, and both streams in the order in which they came."""
        async with await self.session.start(command, timeout=timeout) as running:
            self.running = running
            try:
                return await ended(running)
            finally:
                self.running = None


async def ended(running: dsec.Exec) -> tuple[dsec.Result, str]:
    output = b"".join([piece async for piece in running])
    return await running.wait(), output.decode(errors="backslashreplace")


class DsecRuntime(AbstractRuntime):
    """Commands, sessions and files of one sandbox."""

    def __init__(self, sandbox: dsec.Sandbox, *, logger: logging.Logger | None = None) -> None:
        self.sandbox = sandbox
        self.logger = logger or get_logger("dsec")
        self._shells: dict[str, Shell] = {}

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        try:
            record = await self.sandbox.stat()
        except DsecError as error:
            return IsAliveResponse(is_alive=False, message=error.message)
        return IsAliveResponse(is_alive=record.state is dsec.State.RUNNING, message=str(record.state))

    # -- sessions

    async def create_session(self, request: CreateBashSessionRequest) -> CreateBashSessionResponse:
        if request.session in self._shells:
            raise SessionExistsError(f"session {request.session} already exists")
        shell = Shell(await self.sandbox.session("bash").open())
        self._shells[request.session] = shell
        output = [(await shell.run(f"source {path}"))[1] for path in request.startup_source]
        return CreateBashSessionResponse(output="".join(output))

    def _shell(self, name: str) -> Shell:
        try:
            return self._shells[name]
        except KeyError:
            raise SessionDoesNotExistError(f"session {name!r} does not exist") from None

    async def run_in_session(self, action: BashAction | BashInterruptAction) -> BashObservation:
        shell = self._shell(action.session)
        if isinstance(action, BashInterruptAction):
            return await self._interrupt(shell)
        if action.is_interactive_command or action.is_interactive_quit or action.expect:
            raise NotImplementedError("programs that are talked to run on `Sandbox.start(terminal=…)`")
        await self._check_syntax(action.command)
        try:
            result, output = await shell.run(action.command, action.timeout)
        except SessionEnded as error:
            raise SessionNotInitializedError(error.message) from error
        return observed(action, result, output)

    async def _check_syntax(self, command: str) -> None:
        parsed = await self.sandbox.run(["bash", "-n"], stdin=command)
        if not parsed.ok:
            told = {"bash_stdout": parsed.stdout, "bash_stderr": parsed.stderr}
            raise BashIncorrectSyntaxError(f"{command!r}: {parsed.stderr}", extra_info=told)

    @staticmethod
    async def _interrupt(shell: Shell) -> BashObservation:
        """SIGINT to what runs in it. After a timeout that is nothing: the platform has ended it."""
        if shell.running is not None:
            with contextlib.suppress(GoneError):
                await shell.running.signal(SIGINT)
        return BashObservation(output="", exit_code=0)

    async def close_session(self, request: CloseBashSessionRequest) -> CloseBashSessionResponse:
        await self._shell(request.session).session.close()
        del self._shells[request.session]
        return CloseBashSessionResponse()

    # -- commands and files

    async def execute(self, command: Command) -> CommandResponse:
        argv = command.command
        if not command.shell and isinstance(argv, str):
            argv = [argv]
        line = " ".join(argv) if command.shell and not isinstance(argv, str) else argv
        options: dict[str, Any] = {"timeout": command.timeout, "env": command.env, "cwd": command.cwd}
        try:
            async with await self.sandbox.start(line, **options) as running:
                if command.merge_output_streams:
                    result, out = await ended(running)
                    err = ""
                else:
                    result = await running.wait()
                    raw = (result.stdout_bytes, result.stderr_bytes)
                    out, err = (one.decode(errors="backslashreplace") for one in raw)
        except NoSuchProgram as error:
            raise FileNotFoundError(error.message) from error
        code = exit_code(command.command, command.timeout, result)
        if command.check and code:
            raise failed(command.command, code, f"{out!r}\n{err!r}", command.error_msg)
        return CommandResponse(stdout=out, stderr=err, exit_code=code)

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        try:
            raw = await self.sandbox.files.read(request.path)
        except NoSuchFile as error:
            raise FileNotFoundError(error.message) from error
        return ReadFileResponse(content=raw.decode(request.encoding or "utf-8", request.errors or "strict"))

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        await self.sandbox.files.write(request.path, request.content)
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        await self.sandbox.upload(Path(request.source_path), request.target_path)
        return UploadResponse()

    async def close(self) -> CloseResponse:
        while self._shells:
            _, shell = self._shells.popitem()
            await shell.session.close()
        return CloseResponse()


def observed(action: BashAction, result: dsec.Result, output: str) -> BashObservation:
    """As SWE-ReX tells an end. Raises CommandTimeoutError, NonZeroExitCodeError."""
    code = exit_code(action.command, action.timeout, result)
    if action.check == "raise" and code:
        raise failed(action.command, code, repr(output), action.error_msg)
    return BashObservation(output=output, exit_code=None if action.check == "ignore" else code)


def exit_code(command: object, timeout: float | None, result: dsec.Result) -> int:
    if result.ended is dsec.Ended.TIMEOUT:
        raise CommandTimeoutError(f"timeout after {timeout} seconds while running command {command!r}")
    return 128 + (result.signal or 0) if result.code is None else result.code


def failed(command: object, code: int, output: str, remark: str) -> NonZeroExitCodeError:
    told = f"Command {command!r} failed with exit code {code}. Here is the output:\n{output}"
    return NonZeroExitCodeError(f"{remark}: {told}" if remark else told)


class DsecDeployment(AbstractDeployment):
    """A sandbox from `start` to `stop`. `spec` is what `dsec.Client.create` takes; the platform is found as
    `dsec.Client` finds it.
    """

    def __init__(self, *, logger: logging.Logger | None = None, **spec: Any) -> None:
        self.logger = logger or get_logger("dsec")
        self._spec = spec
        self._hooks = CombinedDeploymentHook()
        self._stack = contextlib.AsyncExitStack()
        self._runtime: DsecRuntime | None = None

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        self._hooks.on_custom_step("Creating a sandbox")
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(dsec.Client())
            sandbox = await stack.enter_async_context(client.sandbox(**self._spec))
            self._runtime = DsecRuntime(sandbox, logger=self.logger)
            self._stack = stack.pop_all()

    async def stop(self) -> None:
        """Repeatable."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            try:
                await runtime.close()
            finally:
                await self._stack.aclose()

    @property
    def runtime(self) -> DsecRuntime:
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime

    def __del__(self) -> None:
        """SWE-ReX would drive an event loop from here; what is not stopped, the sandbox's `ttl` ends."""
