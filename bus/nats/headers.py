"""The header block of a NATS message: `NATS/1.0[ status]`, then one `Name: value` a line."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nats.aio.client import Client

_WRAPS = re.compile(r"[\r\n]+")


def parse_headers(block: bytes) -> dict[str, str]:
    """The fields of a NATS header block; a status line becomes `Status` and `Description`."""
    first, _, lines = block.partition(b"\r\n")
    code, _, description = first.decode("utf-8", "replace").removeprefix("NATS/1.0").strip().partition(" ")
    fields = Client._parse_header_lines(lines)
    if code:
        fields |= {"Status": code, "Description": description}
    return fields


def header_bytes(headers: Mapping[str, str]) -> int:
    """Size of the header block, which counts as payload."""
    return 12 + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())


def header_block(headers: Mapping[str, str]) -> bytes:
    """The block of `headers`; line ends in a value would be a header of their own, and become spaces."""
    lines = "".join(f"{name}: {_WRAPS.sub(' ', value)}\r\n" for name, value in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()
