"""The base layer, as a sandbox sees it. It is built on first use, from the host's Debian sources."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dsec.bus.errors import MissingTool
from dsec.bus.spec import Image
from dsec.plugins.images import ErofsImages, base, erofs
from tests.images.conftest import run

pytestmark = pytest.mark.node
SANDBOX = "s-n-test0001"
_LOOK = """
import os, unittest, ssl, sqlite3, json, ctypes, importlib.util
cached = importlib.util.cache_from_source(unittest.__file__)
assert os.path.getmtime(unittest.__file__) == int.from_bytes(open(cached, 'rb').read(12)[8:], 'little')
"""


@pytest.fixture
async def root(home: Path) -> AsyncIterator[Path]:
    async with ErofsImages(home) as images:
        await images.import_file(base.NAME, await base.base_image(), "base")
        yield (await images.compose(SANDBOX, Image(base=base.NAME))).path
        await images.release(SANDBOX)


async def test_it_has_python_with_valid_bytecode_and_the_usual_tools(root: Path) -> None:
    await run("chroot", root, "python3", "-c", _LOOK)
    await run(
        "chroot", root, "sh", "-ec", "for p in bash sed grep tar find ps awk diff; do command -v $p; done"
    )


async def test_it_is_small_and_tells_nothing_of_the_host(root: Path) -> None:
    assert (await base.base_image()).stat().st_size < 120e6
    assert (root / "etc" / "hostname").read_text() == "sandbox\n"
    assert (root / "etc" / "resolv.conf").read_text() == ""
    assert list((root / "etc" / "apt" / "sources.list.d").iterdir()) == []
    for empty in ("var/lib/apt/lists", "var/cache/apt/archives", "usr/share/doc", "usr/share/locale"):
        assert not [path for path in (root / empty).rglob("*") if path.is_file() and path.stat().st_size], (
            empty
        )


async def test_a_wrong_file_in_the_cache_is_never_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = await base.base_image()
    monkeypatch.setenv("DSEC_CACHE", str(tmp_path))
    image = tmp_path / "images" / good.name
    image.parent.mkdir()
    for suffix in (".erofs", ".sha256"):
        os.link(good.with_suffix(suffix), image.with_suffix(suffix))
    told: list[str] = []
    assert await base.base_image(told.append) == image
    assert "verified" in told[-1]
    image.unlink()
    image.write_bytes(b"wrong")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingTool, match="mmdebstrap"):
        await base.base_image()
    assert sorted(path.suffix for path in image.parent.iterdir()) == [".erofs", ".lock", ".sha256"]


@pytest.mark.slow
async def test_it_is_built_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEC_CACHE", str(tmp_path))
    told: list[str] = []
    image = await base.base_image(told.append)
    await erofs.verify(image)
    assert len(told) == 3
    assert sorted(path.suffix for path in image.parent.iterdir()) == [".erofs", ".lock", ".sha256"]
