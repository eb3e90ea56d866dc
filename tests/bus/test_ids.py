"""Ids are typed and safe as a subject token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus import ids
from dsec.bus.errors import BadId

BAD = ["", "n-", "n-A", "n-a.b", "n-*", "n->", "n-a b", "n-a-", "s-x", "p-a\n", "n-" + "a" * 49]


@pytest.mark.parametrize("value", BAD)
def test_an_id_that_is_not_of_its_kind_is_refused(value: str) -> None:
    with pytest.raises(BadId) as caught:
        ids.check("node", value)
    assert caught.value.field == "node"


@given(st.from_regex(ids.PATTERNS["node"], fullmatch=True))
def test_a_sandbox_id_carries_its_node(node: str) -> None:
    assert ids.node_of(ids.sandbox_on(node)) == node


@given(st.text())
def test_no_id_of_any_kind_has_a_token_separator_or_wildcard(value: str) -> None:
    for kind in ids.PATTERNS:
        try:
            ids.check(kind, value)
        except BadId:
            continue
        assert not set(value) & set(".*> \t\r\n")


def test_the_same_start_operation_names_the_same_exec() -> None:
    assert ids.exec_of("abc") == ids.exec_of("abc")
    assert ids.exec_of("abc") != ids.exec_of("abc2")
    ids.check("exec", ids.exec_of("abc"))
