"""Generated from sdk/jobs.py by `make twin`: change that file, not this one."""

from __future__ import annotations

from collections.abc import Iterator

from dsec.bus.core.jobs.messages import JobStatus
from dsec.bus.errors import DsecError
from dsec.sdk.jobs import Batch as AsyncBatch
from dsec.sdk.jobs import Job as AsyncJob
from dsec.sdk.jobs import Progress
from dsec.sdk.sync.sandbox import Sandbox
from dsec.sdk.twin import base as twin


class Batch(twin.Twin[AsyncBatch]):
    """Made by `Client.create_many`; `job` is its job, `key` its operation id.

    Iterating gives each sandbox once, as it comes to run, and ends when all have run or failed. Several
    iterators are independent of each other.
    """

    def __len__(self) -> int:
        return self._origin.__len__()

    @property
    def job(self) -> str:
        return self._origin.job

    @property
    def key(self) -> str:
        return self._origin.key

    @property
    def ids(self) -> dict[int, str]:
        """The sandbox of each number; those without a node, of which nobody had room, are left out."""
        return self._origin.ids

    @property
    def failures(self) -> dict[int, DsecError]:
        """Why numbers failed, as far as it is known by now."""
        return self._origin.failures

    def progress(self) -> Progress:
        """As the platform has it now. Raises GoneError a week after the batch's last change."""
        return self._portal.call(self._origin.progress())

    def wait(self) -> Progress:
        """Return when all run or have failed."""
        return self._portal.call(self._origin.wait())

    def cancel(self) -> Progress:
        """Create no more of the batch: what nobody has begun fails as `cancelled`, the rest runs on."""
        return self._portal.call(self._origin.cancel())

    def __iter__(self) -> Iterator[Sandbox]:
        return twin.each(self._portal, self._origin.__aiter__(), lambda made: Sandbox(self._portal, made))


class Job(twin.Twin[AsyncJob]):
    """All sandboxes of one job id, however they were created; made by `Client.job`."""

    @property
    def id(self) -> str:
        return self._origin.id

    def stat(self) -> JobStatus:
        """States of its sandboxes over all nodes, and its batches."""
        return self._portal.call(self._origin.stat())

    def pause(self) -> JobStatus:
        """Freeze every sandbox that runs now, all at once; repeatable. `failed` tells which could not be."""
        return self._portal.call(self._origin.pause())

    def resume(self) -> JobStatus:
        """Let every paused sandbox go on; repeatable."""
        return self._portal.call(self._origin.resume())

    def kill(self) -> JobStatus:
        """Destroy every sandbox and cancel its batches; repeatable."""
        return self._portal.call(self._origin.kill())

    def cancel(self) -> JobStatus:
        """Create no more of its batches; what runs, runs on."""
        return self._portal.call(self._origin.cancel())
