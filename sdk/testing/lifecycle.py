"""Creating and destroying: acknowledgements, idempotency, bad input, and nothing left."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from dsec.bus.errors import (
    BadId,
    Conflict,
    NoSuchImage,
    NoSuchSandbox,
    SpecError,
    TooLarge,
    UnknownField,
    Unsupported,
)
from dsec.bus.messages import State
from dsec.sdk import Client, Sandbox
from dsec.sdk.spec_args import LimitArgs
from dsec.sdk.testing import pace, traces


class LifecycleSuite:
    async def test_a_created_sandbox_answers_and_tells_its_limits_as_applied(
        self, client: Client, backend: str, offered: frozenset[str]
    ) -> None:
        every = {"pids": 64, "memory": 256 << 20, "nofile": 100}
        asked = cast("LimitArgs", {name: value for name, value in every.items() if name in offered})
        async with client.sandbox(backend=backend, image="base", limits=asked) as sandbox:
            assert (await sandbox.run(["true"])).code == 0
            applied = (await sandbox.stat()).applied.model_dump()
            assert asked.items() <= applied.items()
            assert not [name for name, value in applied.items() if value is not None and name not in offered]
            assert sandbox.record.state is State.RUNNING

    async def test_nothing_is_left_of_a_destroyed_sandbox(
        self, client: Client, backend: str, home: Path
    ) -> None:
        async with client.sandbox(backend=backend, image="base") as sandbox:
            await sandbox.run("echo x > /file; sleep 100 & setsid sleep 100 & true")
            assert traces.of(home, sandbox.id)
            with traces.network_of(sandbox.id) as still_used:
                await sandbox.destroy()
                assert still_used() == set()
        assert traces.of(home, sandbox.id) == []

    async def test_case_40_files_arrive_right_after_create(self, client: Client, backend: str) -> None:
        async def first(number: int) -> bytes:
            async with client.sandbox(backend=backend, image="base") as sandbox:
                await sandbox.files.write("/tmp/first", b"%d" % number)
                return await sandbox.files.read("/tmp/first")

        count = pace.fewer(16)
        assert await asyncio.gather(*map(first, range(count))) == [b"%d" % n for n in range(count)]

    async def test_destroy_may_be_repeated_and_the_sandbox_is_gone(
        self, client: Client, backend: str
    ) -> None:
        async with client.sandbox(backend=backend, image="base") as sandbox:
            await sandbox.destroy()
            await sandbox.destroy()
            with pytest.raises(NoSuchSandbox):
                await sandbox.run(["true"])

    async def test_one_key_makes_one_sandbox(self, client: Client, backend: str) -> None:
        made = await asyncio.gather(
            *(client.create(backend=backend, image="base", key="once-" + backend) for _ in range(4))
        )
        try:
            assert len({one.id for one in made}) == 1
            with pytest.raises(Conflict):
                await client.create(backend=backend, image="base", ttl=60, key="once-" + backend)
        finally:
            await made[0].destroy()

    @pytest.mark.parametrize(
        ("spec", "error", "field"),
        [
            ({"image": "base", "gpu": 1}, UnknownField, "gpu"),
            ({"image": "base", "limits": {"swap": 1}}, UnknownField, "limits.swap"),
            ({"image": "base", "limits": {"pids": 0}}, SpecError, "limits.pids"),
            ({"image": "no-such-image"}, NoSuchImage, "image"),
            ({"image": {"base": "base", "workspace": "no-such-task"}}, NoSuchImage, "image"),
            ({"image": "a.*.>"}, SpecError, "image.base"),
        ],
    )
    async def test_a_wrong_spec_is_refused_by_its_field(
        self, client: Client, backend: str, spec: dict[str, Any], error: type[SpecError], field: str
    ) -> None:
        with pytest.raises(error) as caught:
            await client.create(backend=backend, **spec)
        assert caught.value.field is not None
        assert caught.value.field.startswith(field)

    @pytest.mark.parametrize(
        ("name", "value"), [("disk", 1 << 30), ("memory", 1 << 30), ("cpu", 1), ("pids", 9)]
    )
    async def test_a_limit_that_the_backend_cannot_enforce_is_refused(
        self, client: Client, backend: str, offered: frozenset[str], name: str, value: int
    ) -> None:
        if name in offered:
            pytest.skip(f"it enforces {name}")
        with pytest.raises(Unsupported) as caught:
            await client.create(backend=backend, image="base", limits=cast("LimitArgs", {name: value}))
        assert caught.value.field == f"limits.{name}"

    async def test_a_message_over_the_payload_limit_is_refused(
        self, client: Client, sandbox: Sandbox
    ) -> None:
        with pytest.raises(TooLarge):
            await sandbox.run(["true"], env={"BIG": "x" * (2 << 20)})
        with pytest.raises(TooLarge):
            await client.create(image="base", labels={"big": "x" * (2 << 20)})

    @pytest.mark.parametrize("name", ["s-a.b-abcdef", "s-*-abcdef", "s-host-ab>", "", "nonsense"])
    async def test_an_id_with_a_dot_or_a_wildcard_is_refused(self, client: Client, name: str) -> None:
        with pytest.raises(BadId):
            await client.attach(name)

    async def test_ttl_ends_a_sandbox(self, client: Client, backend: str, home: Path) -> None:
        sandbox = await client.create(backend=backend, image="base", ttl=1.0)
        await _gone(sandbox)
        assert traces.of(home, sandbox.id) == []

    async def test_idle_ttl_ends_only_an_idle_sandbox(self, client: Client, backend: str) -> None:
        sandbox = await client.create(backend=backend, image="base", idle_ttl=1.5)
        for _ in range(5):
            await asyncio.sleep(0.5)
            assert (await sandbox.run(["true"])).code == 0
        assert (await sandbox.run("sleep 3; echo awake")).stdout == "awake\n"
        await asyncio.sleep(0.2)
        await _gone(sandbox)

    async def test_list_tells_the_projects_sandboxes(self, client: Client, sandbox: Sandbox) -> None:
        assert sandbox.id in {record.sandbox async for record in client.list()}


async def _gone(sandbox: Sandbox, within: float = pace.within(8)) -> None:
    """Wait without touching the sandbox (a request would renew its idle time) and then find it gone."""
    await asyncio.sleep(3.0)
    async with asyncio.timeout(within):
        while True:
            try:
                await sandbox.stat()
            except NoSuchSandbox:
                return
            await asyncio.sleep(2.5)
