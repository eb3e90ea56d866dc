"""Requests hold numbers that kernel, broker and timers can take, and only what a program can be given."""

from typing import Any

import orjson
import pytest

from dsec.bus import messages
from dsec.bus.errors import SpecError
from dsec.bus.frames import unpack_data
from dsec.bus.handlers import decode

HUGE = "1" + 30 * "0"


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (messages.Request, {"deadline": HUGE}),
        (messages.Request, {"deadline": "-1"}),
        (messages.StartExec, {"timeout": "1e300"}),
        (messages.StartExec, {"timeout": "Infinity"}),
        (messages.StartExec, {"log_bytes": HUGE}),
        (messages.StartExec, {"env": '{"": "x"}'}),
        (messages.StartExec, {"env": '{"A=B": "x"}'}),
        (messages.ReadFile, {"offset": HUGE}),
        (messages.WriteFile, {"offset": HUGE}),
        (messages.WriteStdin, {"offset": HUGE}),
        (messages.GrantCredit, {"offset": HUGE}),
        (messages.FetchLog, {"offset": HUGE}),
        (messages.FetchLog, {"cursor": HUGE}),
        (messages.CreateSandbox, {"secrets": '{"A": "x\\u0000"}'}),
        (messages.CreateSandbox, {"secrets": '{"A=": "x"}'}),
    ],
)
def test_a_value_out_of_bounds_is_named(model: type[messages.Request], fields: dict[str, str]) -> None:
    good: dict[str, Any] = {
        "op": "x",
        "deadline": 1,
        "path": "/x",
        "length": 1,
        "offset": 0,
        "argv": ["x"],
        "sandbox": "s",
        "exec": "e",
        "spec": {},
    }
    decode(model, orjson.dumps(good))
    (name,) = fields
    body = orjson.dumps(good | {name: "HERE"}).replace(b'"HERE"', fields[name].encode())
    with pytest.raises(SpecError) as caught:
        decode(model, body)
    assert (caught.value.field or "").startswith(name)


@pytest.mark.parametrize("raw", [b"", b"\0", b"\0\0\0"])
def test_a_raw_message_without_a_header_is_refused(raw: bytes) -> None:
    with pytest.raises(SpecError):
        unpack_data(raw)
