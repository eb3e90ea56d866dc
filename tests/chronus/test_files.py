"""Files through a real chronus: contents whole, nothing followed that must not be, nothing that hangs."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat

import pytest

from dsec.bus.chronus.guest import Guest
from dsec.bus.errors import AgentCrippled, DsecError, NoSuchFile, PolicyError, SpecError
from dsec.bus.messages import FileInfo
from tests.chronus.inside import Inside, sh

pytestmark = pytest.mark.node


async def whole(guest: Guest, path: str) -> list[FileInfo]:
    """All pages of a directory."""
    found: list[FileInfo] = []
    while page := await guest.list(path, found[-1].path.rsplit("/", 1)[1] if found else ""):
        found += page
    return found


async def test_5_megabytes_come_back_as_they_went(guest: Guest) -> None:
    data = os.urandom(5_000_000)
    await guest.write("/tmp/new/parents/big", 0, data, mode=0o600, truncate=True)
    assert await sh(guest, "sha256sum < /tmp/new/parents/big") == hashlib.sha256(data).hexdigest() + "  -"
    assert await guest.read("/tmp/new/parents/big", 0, len(data) + 100) == data
    assert await guest.read("/tmp/new/parents/big", 1_234_567, 100_000) == data[1_234_567:1_334_567]
    assert await guest.read("/tmp/new/parents/big", 5_000_000, 10) == b""
    info = await guest.stat("/tmp/new/parents/big")
    assert (info.size, stat.S_IMODE(info.mode), stat.S_ISREG(info.mode)) == (5_000_000, 0o600, True)
    await guest.remove("/tmp/new", recursive=True)


async def test_a_write_in_the_middle_keeps_the_rest_and_truncate_does_not(guest: Guest) -> None:
    await guest.write("/tmp/f", 0, b"0123456789", truncate=True)
    await guest.write("/tmp/f", 3, b"abc")
    assert await guest.read("/tmp/f", 0, 100) == b"012abc6789"
    await guest.write("/tmp/f", 0, b"", truncate=True, mode=0o755)
    assert ((await guest.stat("/tmp/f")).size, (await guest.stat("/tmp/f")).mode & 0o777) == (0, 0o755)
    await guest.remove("/tmp/f")


async def test_a_directory_of_3000_entries_is_listed_whole_and_in_order(guest: Guest) -> None:
    await sh(guest, "mkdir /tmp/many; cd /tmp/many; seq -f 'file-%g' 3000 | xargs touch")
    found = await whole(guest, "/tmp/many")
    names = sorted(f"/tmp/many/file-{i}" for i in range(1, 3001))
    assert [info.path for info in found] == names
    await guest.remove("/tmp/many", recursive=True)


async def test_long_names_and_targets_fill_pages_without_losing_any(guest: Guest) -> None:
    script = "for i in $(seq 100 400); do ln -s $(printf %02000d $i) $(printf %0200d $i); done"
    await sh(guest, f"mkdir /tmp/long; cd /tmp/long; {script}")
    found = await whole(guest, "/tmp/long")
    assert [int(info.path.rsplit("/", 1)[1]) for info in found] == list(range(100, 401))
    assert all(info.target and len(info.target) == 2000 for info in found)
    await guest.remove("/tmp/long", recursive=True)


async def test_names_that_are_not_utf8_can_be_listed_and_used(guest: Guest) -> None:
    await sh(guest, r"mkdir /tmp/odd; cd /tmp/odd; touch $(printf '\377\200a') $(printf '\344b') zz")
    found = await whole(guest, "/tmp/odd")
    assert [info.path for info in found] == ["/tmp/odd/zz", r"/tmp/odd/\xe4b", r"/tmp/odd/\xff\x80a"]
    for info in found:
        await guest.write(info.path, 0, b"x")
        assert (await guest.stat(info.path)).size == 1
    await guest.remove("/tmp/odd", recursive=True)


async def test_links_are_told_and_made_but_never_followed_by_remove(guest: Guest) -> None:
    await guest.mkdir("/tmp/keep/deep")
    await guest.write("/tmp/keep/deep/precious", 0, b"data")
    await guest.symlink("/tmp/tree/a/link", "/tmp/keep")
    await guest.symlink("/tmp/tree/up", "../..")
    info = await guest.stat("/tmp/tree/a/link")
    assert (info.target, stat.S_ISLNK(info.mode)) == ("/tmp/keep", True)
    await guest.remove("/tmp/tree", recursive=True)
    await guest.symlink("/tmp/alias", "/tmp/keep")
    await guest.remove("/tmp/alias", recursive=True)
    assert await guest.read("/tmp/keep/deep/precious", 0, 10) == b"data"
    await guest.remove("/tmp/keep", recursive=True)
    with pytest.raises(NoSuchFile):
        await guest.stat("/tmp/keep")


async def test_a_full_directory_is_removed_only_when_told_to(guest: Guest) -> None:
    await guest.write("/tmp/d/f", 0, b"")
    with pytest.raises(NoSuchFile, match="not empty"):
        await guest.remove("/tmp/d")
    await guest.remove("/tmp/d/f")
    await guest.remove("/tmp/d")
    await sh(
        guest, "mkdir -p /tmp/w; cd /tmp/w; for i in $(seq 30); do mkdir -p $i/x/y; touch $i/x/y/f; done"
    )
    await guest.remove("/tmp/w", recursive=True)
    with pytest.raises(NoSuchFile):
        await guest.list("/tmp/w")


async def test_a_tree_deeper_than_can_be_walked_is_a_typed_error(guest: Guest) -> None:
    await sh(guest, "mkdir /tmp/deep; cd /tmp/deep; for i in $(seq 700); do mkdir d; cd -P d; done")
    with pytest.raises(DsecError):
        await guest.remove("/tmp/deep", recursive=True)
    await sh(guest, "rm -r /tmp/deep")


async def test_mkdir_makes_parents_and_is_content_with_what_is_there(guest: Guest) -> None:
    await guest.mkdir("/tmp/p/q/r", 0o700)
    await guest.mkdir("/tmp/p/q/r", 0o755)
    assert (await guest.stat("/tmp/p/q/r")).mode & 0o7777 == 0o700
    assert (await guest.stat("/tmp/p")).mode & 0o7777 == 0o755
    await guest.write("/tmp/p/file", 0, b"")
    with pytest.raises(NoSuchFile):
        await guest.mkdir("/tmp/p/file/x")
    await guest.remove("/tmp/p", recursive=True)


@pytest.mark.parametrize("path", ["/tmp/fifo", "/dev/null", "/dev/tty", "/tmp", "/tmp/socket", "/dev/ptmx"])
async def test_what_is_no_regular_file_is_refused_and_never_hangs(guest: Guest, path: str) -> None:
    make = "import socket; socket.socket(socket.AF_UNIX).bind('/tmp/socket')"
    await sh(guest, f'test -p /tmp/fifo || mkfifo /tmp/fifo; rm -f /tmp/socket; python3 -c "{make}"')
    with pytest.raises(NoSuchFile):
        await asyncio.wait_for(guest.read(path, 0, 10), 10)
    with pytest.raises(NoSuchFile):
        await asyncio.wait_for(guest.write(path, 0, b"x"), 10)


@pytest.mark.parametrize(
    "path", ["/proc/self/mem", "/proc/self/environ", "/proc/1/maps", "/proc/self/fd/0", "/proc/meminfo"]
)
async def test_the_agents_own_proc_cannot_be_reached_even_through_a_link(guest: Guest, path: str) -> None:
    await guest.symlink("/tmp/link", path)
    for name in (path, "/tmp/link"):
        with pytest.raises(DsecError):
            await guest.read(name, 0, 10)
        with pytest.raises(DsecError):
            await guest.write(name, 0, b"x")
    with pytest.raises(PolicyError):
        await guest.stat(path)
    with pytest.raises(PolicyError):
        await guest.list("/proc/self/fd")
    await guest.remove("/tmp/link")


async def test_bad_paths_are_typed_errors(guest: Guest) -> None:
    with pytest.raises(SpecError):
        await guest.stat("/tmp/a\0b")
    for path in ("", "/no/such", "/etc/passwd/x", "/" + "a" * 300, "/" + "a/" * 3000):
        with pytest.raises(NoSuchFile):
            await guest.stat(path)
    await guest.symlink("/tmp/loop", "/tmp/loop")
    with pytest.raises(NoSuchFile):
        await guest.read("/tmp/loop", 0, 1)
    await guest.remove("/tmp/loop")
    await guest.ping()


async def test_owners_are_those_of_the_inside(userns_box: Inside) -> None:
    async with userns_box.guest() as guest:
        await guest.write("/tmp/mine", 0, b"x")
        assert ((await guest.stat("/tmp/mine")).uid, (await guest.stat("/tmp/mine")).gid) == (0, 0)
        await guest.remove("/tmp/mine")


async def test_many_readers_at_once_and_a_lost_channel(box: Inside) -> None:
    async with box.guest() as guest:
        data = os.urandom(700_000)
        await guest.write("/tmp/shared", 0, data, truncate=True)
        assert (
            await asyncio.gather(*(guest.read("/tmp/shared", 0, 700_000) for _ in range(20))) == [data] * 20
        )
        await guest.remove("/tmp/shared")
        guest.close()
        with pytest.raises(AgentCrippled):
            await guest.read("/tmp/shared", 0, 200_000)
