"""What core makes of a create request: the parsed spec, what tells it apart, the order to a node.

The specs of a job are alike, thousands of times: the last ones are kept parsed, by their JSON.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Any, Final

import orjson

from dsec.bus.messages import NodeCreate, Place
from dsec.bus.spec import Spec, parse_spec

KEPT: Final = 1024
LONGEST: Final = 4096
"""Bytes of a spec that is kept; so all of them take some megabytes at the most."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A spec as one principal asked for it. `json` is the whole spec, `place` the question to a scheduler."""

    spec: Spec
    json: bytes
    digest: str
    place: Place


def wanted(principal: str, spec: dict[str, Any]) -> Wanted:
    """The request's spec, parsed. Raises UnknownField or SpecError naming the field."""
    raw = orjson.dumps(spec)
    return _kept(principal, raw) if len(raw) <= LONGEST else _parsed(principal, raw)


def _parsed(principal: str, raw: bytes) -> Wanted:
    spec = parse_spec(orjson.loads(raw))
    place = Place(backend=spec.backend, cpu=spec.limits.cpu, memory=spec.limits.memory)
    return Wanted(spec, spec.model_dump_json().encode(), digest(principal, spec), place)


_kept = functools.lru_cache(KEPT)(_parsed)


def digest(principal: str, spec: Spec) -> str:
    """What tells one request of a key from another; secrets are left out, so that nothing can leak."""
    body = [principal, spec.model_dump(mode="json")]
    return hashlib.blake2s(orjson.dumps(body, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()


def packed(order: NodeCreate, spec: bytes) -> bytes:
    """The order as JSON; `spec` is its spec as JSON already."""
    fields = {name: getattr(order, name) for name in NodeCreate.model_fields if name != "spec"}
    return orjson.dumps(fields | {"spec": orjson.Fragment(spec)})
