"""A packed layer belongs to the project that packed it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dsec.bus.errors import Conflict, NoSuchImage, SpecError
from dsec.bus.home import Home
from dsec.bus.ids import tail
from dsec.plugins.iam import Iam
from dsec.sdk import Client, Sandbox
from dsec.sdk.spec_args import ImageArgs
from dsec.sdk.testing.platform import Part

pytestmark = pytest.mark.node


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rival(live: Part, home: Path) -> AsyncIterator[Client]:
    """A client of another project."""
    await asyncio.to_thread(Iam.create_principal, Home(home), "p-rival", "u-rival")
    async with Client(live.url, Home(home).credentials / "u-rival.json") as connected:
        yield connected


async def packed(sandbox: Sandbox, name: str, content: str) -> None:
    await sandbox.run(["sh", "-c", f"echo {content} > /answer"])
    layer = await sandbox.pack(name, ["/answer"])
    assert layer.name == name


@pytest.mark.parametrize("qualified", [False, True])
async def test_another_projects_packed_layer_does_not_exist(
    sandbox: Sandbox, rival: Client, qualified: bool
) -> None:
    name = f"secret-{tail(8)}"
    await packed(sandbox, name, "mine")
    wanted = f"{sandbox.record.project}.{name}" if qualified else name
    images: list[ImageArgs] = [{"base": "base", "packs": [wanted]}, {"base": wanted}]
    for image in images:
        with pytest.raises(NoSuchImage):
            await rival.create(backend="container", image=image)


async def test_two_projects_may_use_one_name_and_each_gets_its_own(
    client: Client, sandbox: Sandbox, rival: Client
) -> None:
    name = f"solved-{tail(8)}"
    async with rival.sandbox(backend="container", image="base") as theirs:
        await packed(theirs, name, "theirs")
    await packed(sandbox, name, "mine")
    image: ImageArgs = {"base": "base", "packs": [name]}
    for owner, content in ((client, "mine\n"), (rival, "theirs\n")):
        async with owner.sandbox(backend="container", image=image) as clean:
            assert (await clean.run(["cat", "/answer"])).stdout == content


async def test_an_operators_layer_cannot_be_shadowed(sandbox: Sandbox) -> None:
    with pytest.raises(Conflict):
        await sandbox.pack("base")


@pytest.mark.parametrize("name", ["", "../x", "p-rival.solved", "x" * 200])
async def test_a_name_that_is_none_or_anothers_is_refused(sandbox: Sandbox, name: str) -> None:
    with pytest.raises(SpecError) as caught:
        await sandbox.pack(name)
    assert caught.value.field == "name"
