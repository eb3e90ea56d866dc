"""The parts that need no root: ranges of ids, mountinfo, the machine check, apt sources, tree removal."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.driver import Images
from dsec.bus.errors import DiskFull, InfraError, MissingTool, NoCapacity
from dsec.bus.files import file_work
from dsec.plugins.images import ErofsImages, base, doctor, tree
from dsec.plugins.images.layers import mount_points
from dsec.plugins.images.ranges import COUNT, FIRST, RANGE, Ranges


@given(st.lists(st.booleans(), max_size=60), st.sets(st.integers(0, 20)))
def test_live_sandboxes_never_share_ids_whatever_order_they_come_and_go_in(
    steps: list[bool], before: set[int]
) -> None:
    ranges, live = Ranges(), [FIRST + number * RANGE for number in before]
    ranges.claim(live)
    for take in steps:
        if take:
            free = next(base for base in range(FIRST, 1 << 31, RANGE) if base not in live)
            live.append(ranges.take())
            assert live[-1] == free
        elif live:
            ranges.give(live.pop(len(live) // 2))
    assert len(set(live)) == len(live)


def test_it_is_what_the_contract_asks_for(tmp_path: Path) -> None:
    images: Images = ErofsImages(tmp_path)
    assert isinstance(images, ErofsImages)
    assert list(tmp_path.iterdir()) == []


def test_ranges_end_below_31_bits_and_then_say_so() -> None:
    ranges = Ranges()
    ranges.claim([FIRST + (COUNT - 2) * RANGE])
    for _ in range(COUNT - 2):
        ranges.take()
    assert ranges.take() + RANGE <= 1 << 31
    with pytest.raises(NoCapacity):
        ranges.take()


def test_mount_points_are_read_with_their_escapes_and_the_topmost_counts() -> None:
    mountinfo = rb"""36 35 98:0 / /mnt\040a rw,noatime master:1 - ext3 /dev/root rw
37 36 0:9 / /mnt\040a rw - erofs /x ro
38 35 0:8 / /odd\134\377 rw shared:2 propagate_from:3 - tmpfs none rw
"""
    assert mount_points(mountinfo) == {b"/mnt a": b"erofs", b"/odd\\\xff": b"tmpfs"}


@pytest.mark.parametrize(
    ("release", "filesystems", "advice"),
    [
        ("5.15.0-42-generic", "nodev overlay\n erofs\n", "5.19"),
        ("6.13.2", "nodev overlay\n", "modprobe -a erofs"),
        ("6.18.44-fc", "ext4\n", "modprobe -a erofs overlay"),
    ],
)
def test_a_kernel_that_cannot_compose_is_told(release: str, filesystems: str, advice: str) -> None:
    with pytest.raises(MissingTool, match=advice):
        doctor.check_kernel(release, filesystems)


def test_a_kernel_that_needs_loop_devices_is_told_when_it_has_none(tmp_path: Path) -> None:
    with pytest.raises(MissingTool, match="modprobe loop"):
        doctor.check_loop("6.8.0-31-generic", tmp_path / "loop-control")
    doctor.check_loop("6.12.1", tmp_path / "loop-control")
    doctor.check_loop("6.8.0-31-generic", tmp_path)


def test_a_good_kernel_and_root_pass() -> None:
    doctor.check_kernel("6.1.0-42-amd64", "nodev\toverlay\n\terofs\n")
    doctor.check_rights("Name:\tx\nCapEff:\t000001ffffffffff\n")


def test_missing_rights_are_told() -> None:
    with pytest.raises(MissingTool, match="CAP_SYS_ADMIN"):
        doctor.check_rights("CapInh:\t0\nCapEff:\t0000000000000000\nSeccomp:\t0\n")


def test_only_debians_own_sources_are_used(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    signed = "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg"
    plain = "deb http://mirror.invalid/debian bookworm main contrib"
    keyed = "deb [signed-by=/debian-archive-keyring.gpg] http://m/debian-security/ bookworm-security main"
    texts = {
        "sources.list": f"# {plain}\n{plain}\ndeb-src http://mirror.invalid/debian bookworm main\n",
        "sources.list.d/debian.sources": f"Types: deb\nURIs: http://m.invalid\nSuites: bookworm\n{signed}\n",
        "sources.list.d/node.sources": "Types: deb\nSuites: nodistro\nSigned-By: /x.gpg\n",
        "sources.list.d/other.sources": "Types: deb\nSuites: bookworm\nSigned-By: /x.gpg\n",
        "sources.list.d/unsigned.sources": "Types: deb\nSuites: bookworm\n",
        "sources.list.d/vendor.list": f"deb [signed-by=/x.gpg] http://v/debian bookworm main\n{keyed}\n",
        "sources.list.d/stable.list": "deb http://v.invalid/linux/debian bookworm stable\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found = base.debian_sources(tmp_path)
    assert found == [plain, keyed, str(tmp_path / "sources.list.d" / "debian.sources")]


def test_a_host_without_a_debian_source_is_told(tmp_path: Path) -> None:
    with pytest.raises(MissingTool, match="apt source"):
        base.debian_sources(tmp_path)


def test_a_full_disk_and_a_quota_are_told_from_other_faults() -> None:
    for number, kind in ((28, DiskFull), (122, DiskFull), (5, InfraError)):
        with pytest.raises(kind), file_work("writing"):
            raise OSError(number, "x")


def test_a_tree_is_removed_some_names_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "_AT_ONCE", 3)
    deep = tmp_path / "tree" / "1/2/3/4/5/6/7/8/9"
    deep.mkdir(parents=True)
    for directory in (deep, *deep.parents[:9]):
        for number in range(10):
            (directory / f"file-{number}").touch()
            (directory / f"directory-{number}").mkdir()
    tree.remove(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def test_trees_are_removed_without_following_symlinks(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    deep = tmp_path / "tree" / "/".join("abcdefgh")
    deep.mkdir(parents=True)
    (deep / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "outside")
    for _ in range(2):
        tree.remove(tmp_path / "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (tmp_path / "outside" / "kept").exists()
