"""The arguments of a create as they are sent."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import orjson
import pytest

from dsec.bus.errors import SpecError, UnknownField
from dsec.sdk.spec_args import asked


def sent(**spec: Any) -> Any:
    return orjson.loads(orjson.dumps(asked(spec)))


def test_only_what_was_given_is_sent() -> None:
    assert sent(image="base", ttl=60) == {"image": {"base": "base"}, "ttl": 60.0}
    assert sent(image="base", ttl=60) == sent(image="base", ttl=60.0)


def test_mappings_and_sequences_of_any_kind_will_do() -> None:
    spec = sent(image={"base": "a", "toolkits": ("b",)}, env=MappingProxyType({"A": "1"}))
    assert spec == {"image": {"base": "a", "toolkits": ["b"]}, "env": {"A": "1"}}


def test_a_number_that_is_none_is_refused_although_nothing_would_do() -> None:
    assert sent(image="base", limits={"cpu": None}) == {"image": {"base": "base"}, "limits": {"cpu": None}}
    with pytest.raises(SpecError):
        asked({"image": "base", "limits": {"cpu": math.nan}})


def test_a_wrong_argument_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(UnknownField):
            asked({"image": "base", "gpu": 1})
