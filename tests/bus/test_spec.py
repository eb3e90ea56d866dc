"""A user's spec refuses what it does not know, by the field's name."""

from typing import Any

import pytest

from dsec.bus.errors import SpecError, UnknownField
from dsec.bus.spec import Limits, parse_spec


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"image": "a", "gpu": 1}, "gpu"),
        ({"image": "a", "limits": {"gpus": 1}}, "limits.gpus"),
        ({"image": {"base": "a", "overlay": "b"}}, "image.overlay"),
    ],
)
def test_an_unknown_field_is_named(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(UnknownField) as caught:
        parse_spec(spec)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "image"),
        ({"image": "UPPER"}, "image.base"),
        ({"image": "a", "ttl": -1}, "ttl"),
        ({"image": "a", "limits": {"pids": 1}}, "limits.pids"),
        ({"image": "a", "backend": "Docker!"}, "backend"),
        ({"image": {"base": "a", "toolkits": ["t"] * 129}}, "image.toolkits"),
        ({"image": {"base": "a", "packs": ["t"] * 129}}, "image.packs"),
        ({"image": "a", "limits": {"memory": 10**30}}, "limits.memory"),
        ({"image": "a", "limits": {"pids": 10**8}}, "limits.pids"),
        ({"image": "a", "limits": {"log_bytes": 10**30}}, "limits.log_bytes"),
        ({"image": "a", "idle_ttl": float("inf")}, "idle_ttl"),
        ({"image": "a", "user": "ro\0ot"}, "user"),
        ({"image": "a", "env": {"A": "x\0"}}, "env.A"),
        ({"image": "a", "labels": {"a": "x" * 65_536}}, "spec"),
    ],
)
def test_a_wrong_value_is_named(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(spec)
    assert caught.value.field == field


def test_layers_stand_bottom_first() -> None:
    spec = parse_spec({"image": {"base": "os", "workspace": "w", "toolkits": ["t1", "t2"], "packs": ["p"]}})
    assert spec.image.layers == ("os", "w", "t1", "t2", "p")


def test_limits_asked_for_win_over_defaults() -> None:
    applied = Limits(pids=50).over(Limits(pids=10, memory=1 << 30))
    assert applied == Limits(pids=50, memory=1 << 30)
    assert Limits(pids=50).asked() == {"pids"}
