"""Output: exact bytes, exact truncation, history by offset, readers that stop and come back."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dsec.bus.errors import LimitError
from dsec.bus.messages import Ended
from dsec.sdk import Client, Sandbox
from dsec.sdk.testing import pace

FILL = "head -c {size} /dev/zero | tr '\\0' a; printf END"


class OutputSuite:
    @pytest_asyncio.fixture(loop_scope="session")
    async def roomy(self, client: Client, backend: str) -> AsyncIterator[Sandbox]:
        """A sandbox whose commands may print a gigabyte each."""
        async with client.sandbox(backend=backend, image="base", limits={"log_bytes": 1 << 30}) as sandbox:
            yield sandbox

    async def test_case_13_any_bytes_come_back_exactly(self, sandbox: Sandbox) -> None:
        result = await sandbox.run("printf '\\226\\377\\000ok'")
        assert result.stdout_bytes == b"\x96\xff\x00ok"
        assert result.stdout == "\ufffd\ufffd\x00ok"
        assert (await sandbox.run(["true"])).ok

    async def test_stdout_and_stderr_stay_apart(self, sandbox: Sandbox) -> None:
        result = await sandbox.run("echo out; echo err >&2")
        assert (result.stdout, result.stderr) == ("out\n", "err\n")

    @pytest.mark.parametrize("size", [4096, 30_000, 100_000])
    @pytest.mark.parametrize("over", [-1, 0, 1])
    async def test_case_14_truncation_is_exact(self, sandbox: Sandbox, size: int, over: int) -> None:
        command = f"head -c {size + over} /dev/zero | tr '\\0' a"
        result = await sandbox.run(command, log_bytes=size, timeout=30)
        assert result.ended is Ended.EXIT
        assert result.truncated is (over > 0)
        assert len(result.stdout_bytes) == min(size, size + over)

    async def test_case_14_all_output_up_to_the_quota_can_be_fetched_later(
        self, client: Client, sandbox: Sandbox
    ) -> None:
        running = await sandbox.start(FILL.format(size=300_000))
        first = await running.wait()
        again = await client.exec(sandbox.id, running.id).wait()
        assert first.stdout_bytes == again.stdout_bytes == b"a" * 300_000 + b"END"
        assert again.code == 0

    @pytest.mark.parametrize("power", [16, 20, pace.smaller(24), pace.smaller(27)])
    @pytest.mark.parametrize("over", [-1, 0, 1])
    async def test_case_15_long_output_ends_with_its_end(self, roomy: Sandbox, power: int, over: int) -> None:
        size = 2**power + over
        running = await roomy.start(FILL.format(size=size), timeout=pace.within(100))
        length, last = 0, b""
        async for chunk in running:
            length += len(chunk)
            last = (last + chunk)[-3:]
        assert (length, last) == (size + 3, b"END")
        assert (await running.wait()).code == 0

    async def test_long_output_is_equal_byte_for_byte(self, sandbox: Sandbox) -> None:
        program = (
            "import random,sys; r=random.Random(7);"
            "[sys.stdout.buffer.write(r.randbytes(9973)) for _ in range(800)]"
        )
        inside = await sandbox.run(["sh", "-c", f'python3 -c "{program}" | sha256sum'])
        digest = hashlib.sha256()
        async for chunk in await sandbox.start(["python3", "-c", program]):
            digest.update(chunk)
        assert inside.stdout.split()[0] == digest.hexdigest()

    async def test_a_character_split_over_frames_stays_whole(self, sandbox: Sandbox) -> None:
        program = (
            "import os,time\n"
            "for byte in 'a\u20ac\U0001f600z'.encode():\n os.write(1, bytes([byte])); time.sleep(0.06)"
        )
        running = await sandbox.start(["python3", "-c", program])
        text = [piece async for piece in running.text()]
        assert "".join(text) == "a\u20ac\U0001f600z"
        assert "\ufffd" not in "".join(text)

    async def test_output_arrives_while_the_command_runs(self, sandbox: Sandbox) -> None:
        running = await sandbox.start(f"echo first; sleep {pace.within(3)}; echo second")
        chunks = aiter(running)
        async with asyncio.timeout(pace.within(2.5)):
            assert await anext(chunks) == b"first\n"
        assert b"".join([chunk async for chunk in chunks]) == b"second\n"

    async def test_case_10_a_reader_comes_back_at_its_offset(self, client: Client, sandbox: Sandbox) -> None:
        running = await sandbox.start("for i in 1 2 3 4 5 6; do echo line$i; sleep 0.3; done; exit 4")
        await asyncio.sleep(0.8)
        later = client.exec(sandbox.id, running.id, offset=6)
        output = b"".join([chunk async for chunk in later])
        assert output == b"".join(b"line%d\n" % i for i in range(2, 7))
        assert (await later.wait()).code == 4

    async def test_a_detached_command_goes_on_without_a_reader(
        self, client: Client, sandbox: Sandbox
    ) -> None:
        running = await sandbox.start("sleep 0.5; " + FILL.format(size=200_000) + "; exit 3", detach=True)
        await asyncio.sleep(1.5)
        result = await client.exec(sandbox.id, running.id).wait()
        assert (result.code, result.stdout_bytes) == (3, b"a" * 200_000 + b"END")

    async def test_case_28_endless_output_is_bounded_and_others_go_on(
        self, client: Client, backend: str, sandbox: Sandbox
    ) -> None:
        running = await sandbox.start(
            ["yes"], timeout=max(4, pace.within(1.6)), log_bytes=1 << 20, detach=True
        )
        async with client.sandbox(backend=backend, image="base") as other:
            for _ in range(20):
                assert (await asyncio.wait_for(other.run(["true"]), pace.within(3))).ok
        result = await running.wait()
        assert (result.ended, result.truncated) == (Ended.TIMEOUT, True)
        assert len(result.stdout_bytes) == 1 << 20

    async def test_more_than_the_sandboxes_quota_is_refused(self, sandbox: Sandbox) -> None:
        with pytest.raises(LimitError) as caught:
            await sandbox.run(["true"], log_bytes=1 << 40)
        assert caught.value.field == "log_bytes"

    async def test_a_reader_that_stops_holds_up_nobody_else(self, sandbox: Sandbox) -> None:
        endless = await sandbox.start(["cat", "/dev/zero"], timeout=pace.within(10))
        await anext(aiter(endless))
        for _ in range(20):
            assert (await asyncio.wait_for(sandbox.run(["true"]), pace.within(8))).ok
        await endless.kill()

    async def test_a_durable_result_is_stored_when_it_is_answered(
        self, client: Client, sandbox: Sandbox
    ) -> None:
        result = await sandbox.run("echo kept", durable=True)
        assert (await client.exec(sandbox.id, result.exec).wait()).stdout == "kept\n"
