"""What an archive may hold: refusals name the member and come before anything is written."""

import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.errors import UnsafeArchive
from dsec.sdk.archive import Member, check, of_mode, of_tar, safe_name


def info(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a/..", "..", "x\0y"])
def test_a_name_that_leaves_its_directory_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsafeArchive) as caught:
        of_tar(info(name))
    assert caught.value.field == name
    assert repr(name) in caught.value.message


@pytest.mark.parametrize(
    "kind", [tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"x9"], ids=repr
)
def test_hard_links_devices_and_pipes_are_refused(kind: bytes) -> None:
    with pytest.raises(UnsafeArchive):
        of_tar(info("x", kind, "/etc/passwd"))


@pytest.mark.parametrize("mode", [0o010644, 0o020644, 0o060644, 0o140644])
def test_devices_pipes_and_sockets_of_a_tree_are_refused(mode: int) -> None:
    with pytest.raises(UnsafeArchive):
        of_mode("x", mode, 0, None)


@pytest.mark.parametrize(
    "names", [("out", "out/evil"), ("out/evil", "out"), ("out", "out"), ("./out", "out//evil")]
)
def test_nothing_is_below_or_in_place_of_a_link(names: tuple[str, str]) -> None:
    link = of_tar(info(names[names[0] != "out" and names[0] != "./out"], tarfile.SYMTYPE, "/etc"))
    other = of_tar(info(names[names[0] in {"out", "./out"}]))
    for order in ([link, other], [other, link]):
        with pytest.raises(UnsafeArchive):
            check(order)


@pytest.mark.parametrize(
    ("name", "target"), [("l", "/etc"), ("l", ".."), ("a/l", "../../x"), ("a/l", "b/../../../x")]
)
def test_a_link_on_this_machine_must_stay_inside(name: str, target: str) -> None:
    link = Member(name, "symlink", 0o777, target=target)
    assert check([link]) == [link]
    with pytest.raises(UnsafeArchive):
        check([link], links_inside=True)


def test_links_inside_and_parents_first() -> None:
    members = [Member("a/b/l", "symlink", 0o777, target="../x"), Member("a/b", "directory", 0o755)]
    assert [member.name for member in check(members, links_inside=True)] == ["a/b", "a/b/l"]


segments = st.lists(st.sampled_from(["..", ".", "", "a", "b", "..."]), min_size=1, max_size=6)


@given(segments)
def test_a_safe_name_never_leaves_and_is_in_shortest_form(parts: list[str]) -> None:
    name = "/".join(parts)
    try:
        safe = safe_name(name)
    except UnsafeArchive:
        assert name.startswith("/") or ".." in parts
    else:
        assert safe_name(safe) == safe
        assert not {"..", ".", ""} & set(safe.split("/")) or safe == ""
