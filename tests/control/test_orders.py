"""What core makes of a request: parsed once, told apart, packed as the model would be."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.core.orders import LONGEST, digest, packed, wanted
from dsec.bus.errors import UnknownField
from dsec.bus.messages import NodeCreate
from dsec.bus.spec import parse_spec

SPEC = {"backend": "sim", "image": "any", "limits": {"cpu": 2}, "labels": {"a": "ü"}}


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3), st.booleans())
def test_a_packed_order_is_the_order(secrets: dict[str, str], excluded: bool) -> None:
    asked = wanted("u-one", SPEC)
    order = NodeCreate(
        op="the-key",
        deadline=1,
        project="p-one",
        principal="u-one",
        sandbox="s-a-abcd",
        spec=asked.spec,
        secrets=secrets,
        excluded=("n-b",) if excluded else (),
    )
    assert NodeCreate.model_validate_json(packed(order, asked.json)) == order


def test_a_spec_is_parsed_once_and_belongs_to_its_principal() -> None:
    one = wanted("u-one", SPEC)
    assert wanted("u-one", dict(SPEC)) is one
    assert one.digest == digest("u-one", parse_spec(SPEC))
    assert wanted("u-two", SPEC).digest != one.digest


def test_a_long_spec_is_not_kept() -> None:
    long = {**SPEC, "labels": {"a": "x" * LONGEST}}
    assert wanted("u-one", long) is not wanted("u-one", long)


def test_a_wrong_spec_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(UnknownField):
            wanted("u-one", orjson.loads(b'{"image":"a","gpu":1}'))
