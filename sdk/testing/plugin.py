"""pytest fixtures of the conformance suite; `-p dsec.sdk.testing.plugin`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import pytest_asyncio

from dsec.bus.host import DRIVERS, load
from dsec.bus.remote.messages import CAPABILITIES
from dsec.sdk import Client, Sandbox
from dsec.sdk.testing import platform

pytest.register_assert_rewrite(
    *(
        f"dsec.sdk.testing.{name}"
        for name in (
            "execs",
            "files",
            "honest",
            "isolation",
            "lifecycle",
            "output",
            "pausing",
            "ports",
            "recovery",
            "sessions",
            "stopping",
            "terminals",
            "watching",
            "detached",
            "calls",
            "probes",
        )
    )
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dsec")
    group.addoption("--driver", default="container", help="backend under test")
    group.addoption("--own-process", action="store_true", help="run it in a process of its own")
    group.addoption("--base-image", default=None, help="EROFS file, tar or directory of the base layer")


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    """The backend under test."""
    return str(request.config.getoption("--driver"))


@pytest.fixture(scope="session")
def offered(backend: str, tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """The limits that the backend says it enforces; it must enforce these, and refuse the others."""
    limits: frozenset[str] = load(DRIVERS, backend)(tmp_path_factory.mktemp("driver")).info().limits
    return limits


@pytest.fixture(scope="session")
def abilities(backend: str, tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """The optional parts of the contract that the backend implements, by their names on the wire."""
    driver = load(DRIVERS, backend)(tmp_path_factory.mktemp("driver"))
    return frozenset(name for name, kind in CAPABILITIES.items() if isinstance(driver, kind))


@pytest.fixture(scope="session")
def apart(request: pytest.FixtureRequest, backend: str) -> str:
    """The backend's name when its driver is to run in a process of its own."""
    return backend if request.config.getoption("--own-process") else ""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def base_file(request: pytest.FixtureRequest) -> Path:
    """The base layer of the tests: Debian with Python."""
    given = request.config.getoption("--base-image")
    return Path(given) if given else await default_base()


async def default_base() -> Path:
    """The base image that `make setup` keeps in the cache, found through the `dsec.images` entry point."""
    (images,) = entry_points(group="dsec.images")
    return Path(await images.load().default_base())


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def home(tmp_path_factory: pytest.TempPathFactory, base_file: Path) -> Path:
    """Home of a platform with the image `base` in its catalog."""
    directory = tmp_path_factory.mktemp("home")
    await add_base(directory, base_file)
    return directory


async def default_functions() -> Path:
    """As `default_base`, of the layer for stateless calls."""
    (images,) = entry_points(group="dsec.images")
    return Path(await images.load().default_functions())


async def add_base(home: Path, base_file: Path) -> None:
    """Import the base layer as `base` into the catalog of `home`'s node."""
    await platform.command("image", "import", "--home", str(home), "--kind", "base", "base", str(base_file))


async def add_functions(home: Path, image: Path) -> None:
    """Import the layer of stateless calls as `functions`, where those run that name no image."""
    await platform.command("image", "import", "--home", str(home), "--kind", "base", "functions", str(image))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def live(home: Path, apart: str) -> AsyncIterator[platform.Part]:
    """The whole platform, running."""
    async with platform.running(home, driver=apart) as part:
        yield part


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def client(live: platform.Part) -> AsyncIterator[Client]:
    async with live.client() as connected:
        yield connected


@pytest_asyncio.fixture(loop_scope="session")
async def sandbox(client: Client, backend: str) -> AsyncIterator[Sandbox]:
    """A fresh sandbox of the backend under test."""
    async with client.sandbox(backend=backend, image="base") as fresh:
        yield fresh
