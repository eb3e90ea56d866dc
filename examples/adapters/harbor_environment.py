"""Harbor's environments on opendsec: `import_path` is `examples.adapters.harbor_environment:DsecEnvironment`.

A task names its image as `[environment] docker_image`: the name of a layer in the node's catalog. The
platform is found as `dsec.Client` finds it. A sandbox has no network: tasks that ask for one are refused,
unless the environment's option `offline` says that they can do without.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.options import EnvironmentOptions

import dsec
from dsec.bus.errors import NoSuchProgram

SHELL: Final = ("/bin/bash", "-c")
IDLE: Final = 6 * 3600.0
"""Seconds after which a sandbox goes that nobody has used, whatever became of the trial."""
NOT_STARTED: Final = "the environment is not started: call start() first"


class Options(EnvironmentOptions):
    """`offline`: run tasks that ask for a public network without one."""

    offline: bool = False


class DsecEnvironment(BaseEnvironment):
    """One sandbox, from `start` to `stop`."""

    options_model = Options
    options: Options

    def __init__(self, *args: Any, **more: Any) -> None:
        self._stack = contextlib.AsyncExitStack()
        self._sandbox: dsec.Sandbox | None = None
        self._kept = False
        super().__init__(*args, **more)

    @staticmethod
    def type() -> str:
        return "dsec"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    def _validate_definition(self) -> None:
        if not self.task_env_config.docker_image:
            raise ValueError("name a layer of the catalog as [environment] docker_image in task.toml")
        if self._network_is_public and not self.options.offline:
            raise ValueError(
                "sandboxes have no network: say network_mode = 'no-network', or --ek offline=true"
            )

    @property
    def sandbox(self) -> dsec.Sandbox:
        if self._sandbox is None:
            raise RuntimeError(NOT_STARTED)
        return self._sandbox

    # -- lifecycle

    async def start(self, force_build: bool) -> None:  # noqa: FBT001 - Harbor's
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(dsec.Client())
            spec: dict[str, Any] = {"image": self.task_env_config.docker_image, "limits": self._limits()}
            self._sandbox = made = await client.create(idle_ttl=IDLE, **spec)
            stack.push_async_callback(self._destroy, made)
            if workdir := self.task_env_config.workdir:
                await made.files.mkdir(workdir)
            await self.ensure_dirs(self._mount_targets(writable_only=True))
            await self._upload_environment_dir_after_start()
            self._stack = stack.pop_all()

    async def _destroy(self, made: dsec.Sandbox) -> None:
        if not self._kept:
            await made.destroy()

    def _limits(self) -> dict[str, float]:
        cpus, megabytes = self._resource_value("cpu"), self._resource_value("memory")
        limits = {"cpu": cpus, "memory": None if megabytes is None else megabytes << 20}
        return {name: value for name, value in limits.items() if value is not None}

    async def stop(self, delete: bool) -> None:  # noqa: FBT001 - Harbor's
        """Repeatable. A sandbox that is to be kept goes with its `idle_ttl`."""
        made, self._sandbox = self._sandbox, None
        if made is None:
            return
        if not delete:
            self.logger.info("sandbox %s is kept: dsec shell %s", made.id, made.id)
        self._kept = not delete
        await self._stack.aclose()

    # -- commands

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        who = self._resolve_user(user)
        try:
            result = await self.sandbox.run(
                [*SHELL, command],
                cwd=cwd or self.task_env_config.workdir,
                env=self._merge_env(env),
                timeout=timeout_sec,
                user=None if who is None else str(who),
            )
        except NoSuchProgram as error:
            return ExecResult(stdout="", stderr=error.message, return_code=127)
        if result.ended is dsec.Ended.TIMEOUT:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        code = 128 + (result.signal or 0) if result.code is None else result.code
        return ExecResult(stdout=result.stdout, stderr=result.stderr, return_code=code)

    # -- files

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await self.sandbox.upload(source_path, target_path)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self.sandbox.upload(source_dir, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        target = Path(target_path)
        await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
        await self.sandbox.download(source_path, target)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Into the directory, over what is there."""
        with tempfile.TemporaryDirectory() as beside:
            await self.sandbox.download(source_dir, f"{beside}/tree")
            await asyncio.to_thread(
                shutil.copytree, f"{beside}/tree", target_dir, symlinks=True, dirs_exist_ok=True
            )
