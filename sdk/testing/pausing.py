"""Pausing: nothing is lost, the next request resumes it, and who wants it to stay paused can have that."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from dsec.bus.errors import SpecError
from dsec.bus.messages import State
from dsec.sdk import Client, Sandbox
from dsec.sdk.testing import pace
from dsec.sdk.testing.ports import ECHO, serve

COUNT = "import time\nfor i in range(100000): print(time.time(), flush=True); time.sleep(0.02)"


@pytest.mark.usefixtures("pausing")
class PauseSuite:
    @pytest.fixture
    def pausing(self, abilities: frozenset[str]) -> None:
        """Only where sandboxes can be paused."""
        if "pause" not in abilities:
            pytest.skip("it cannot pause")

    async def test_what_was_written_without_a_sync_is_there_after_a_pause(self, sandbox: Sandbox) -> None:
        for number in range(3):
            data = bytes([number]) * (3 << 20)
            await sandbox.files.write(f"/data{number}", data)
            told = await sandbox.run(f"echo {number} > /small{number}; sha256sum < /data{number}")
            assert (await sandbox.pause()).state is State.PAUSED
            assert (await sandbox.resume()).state is State.RUNNING
            again = await sandbox.run(f"sha256sum < /data{number}; cat /small{number}")
            assert again.stdout == f"{told.stdout}{number}\n"
            assert await sandbox.files.read(f"/data{number}") == data

    async def test_a_command_or_a_file_resumes_it(self, sandbox: Sandbox) -> None:
        await sandbox.pause()
        assert (await sandbox.run("echo awake")).stdout == "awake\n"
        assert (await sandbox.stat()).state is State.RUNNING
        await sandbox.pause()
        await sandbox.files.write("/x", b"written")
        await sandbox.pause()
        assert await sandbox.files.read("/x") == b"written"

    async def test_bytes_for_a_port_resume_it_and_a_connection_alone_does_not(
        self, sandbox: Sandbox, abilities: frozenset[str]
    ) -> None:
        if "connect" not in abilities:
            pytest.skip("its ports cannot be reached")
        await serve(sandbox, ECHO)
        reader, writer = await sandbox.connect(9000)
        await sandbox.pause()
        await asyncio.sleep(0.3)
        assert (await sandbox.stat()).state is State.PAUSED
        writer.write(b"still there\n")
        assert await reader.readline() == b"still there\n"
        writer.close()
        await sandbox.pause(resume_on_request=False)
        with pytest.raises(SpecError, match="paused"):
            await sandbox.connect(9000)

    async def test_many_requests_at_once_find_it_awake(self, sandbox: Sandbox) -> None:
        for _ in range(5):
            pausing = asyncio.create_task(sandbox.pause())
            results = await asyncio.gather(*(sandbox.run(f"echo {i}") for i in range(10)))
            assert [result.stdout for result in results] == [f"{i}\n" for i in range(10)]
            await pausing

    async def test_its_processes_stand_still_and_its_clock_is_right(self, sandbox: Sandbox) -> None:
        running = await sandbox.start(["python3", "-c", COUNT])
        lines = running.lines()
        before = float(await anext(lines))
        await sandbox.pause()
        await asyncio.sleep(2)
        await sandbox.resume()
        times = [before]
        while times[-1] < before + 2.2:
            times.append(float(await anext(lines)))
        assert max(after - at for at, after in itertools.pairwise(times)) > 1.5
        inside = float((await sandbox.run(["date", "+%s.%N"])).stdout)
        assert abs(time.time() - inside) < pace.within(1)
        await running.kill()

    async def test_one_that_is_held_is_resumed_by_a_resume_only(self, sandbox: Sandbox) -> None:
        assert (await sandbox.pause(resume_on_request=False)).held
        for refused in (sandbox.run(["true"]), sandbox.files.read("/etc/passwd")):
            with pytest.raises(SpecError, match="paused"):
                await refused
        assert (await sandbox.pause()).held  # nor does a weaker pause let it go
        assert not (await sandbox.resume()).held
        assert (await sandbox.run(["true"])).ok

    async def test_a_pause_of_its_job_holds_it_whatever_it_was_before(
        self, client: Client, backend: str
    ) -> None:
        async with client.sandbox(backend=backend, image="base", job=f"j-hold-{backend}") as sandbox:
            await sandbox.pause()
            job = client.job(f"j-hold-{backend}")
            assert (await job.pause()).states == {State.PAUSED: 1}
            with pytest.raises(SpecError, match="paused"):
                await sandbox.run(["true"])
            await job.resume()
            assert (await sandbox.run(["true"])).ok

    async def test_a_paused_one_can_be_stopped(self, sandbox: Sandbox) -> None:
        await sandbox.run("echo kept > /kept")
        await sandbox.pause()
        assert (await sandbox.stop()).state is State.STOPPED
        await sandbox.start()
        assert (await sandbox.run("cat /kept")).stdout == "kept\n"
