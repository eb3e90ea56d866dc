"""Template and overrides of a batch: parsed as strictly as one spec, each error naming its field."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, Final

import orjson

from dsec.bus.core.jobs.messages import CreateBatch, Overrides
from dsec.bus.errors import SpecError, Unsupported
from dsec.bus.spec import Spec, parse_spec

MERGED: Final = ("env", "labels", "limits")
AT_ONCE: Final = 200
"""Overrides that are parsed before others have their turn."""


def overridden(template: dict[str, Any], override: dict[str, Any]) -> dict[str, Any]:
    """`template` with the fields of `override`; those in `MERGED` keep what the override does not name."""
    spec = {**template, **override}
    for name in MERGED:
        ours, theirs = template.get(name), override.get(name)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            spec[name] = {**ours, **theirs}
    return spec


async def parse_batch(request: CreateBatch, job: str) -> Spec:
    """The template, once it and every override have been found right.

    Raises UnknownField or SpecError whose field is the spec's (`limits.cpu`), or for an override
    `overrides.7.limits.cpu`; Unsupported for secrets.
    """
    if request.secrets:
        raise Unsupported(
            "a batch takes no secrets, since it is stored; give them to commands", field="secrets"
        )
    if request.spec.get("job") not in {None, job}:
        raise SpecError(f"job: the batch belongs to {job}", field="job")
    spec = parse_spec({**request.spec, "job": job})
    template, right = spec.model_dump(mode="json"), set[bytes]()
    for done, (number, override) in enumerate(request.overrides.items()):
        kind = orjson.dumps(override, option=orjson.OPT_SORT_KEYS)
        if number >= request.count:
            raise SpecError(f"overrides.{number}: the batch has {request.count}", field=f"overrides.{number}")
        if kind not in right:
            _parse_override(template, number, override)
            right.add(kind)
        if done % AT_ONCE == AT_ONCE - 1:
            await asyncio.sleep(0)
    return spec


def _parse_override(template: dict[str, Any], number: int, override: dict[str, Any]) -> None:
    where = f"overrides.{number}"
    if "job" in override:
        raise SpecError(f"{where}.job: a batch is of one job", field=f"{where}.job")
    try:
        parse_spec(overridden(template, override))
    except SpecError as error:
        raise type(error)(f"{where}.{error.message}", field=f"{where}.{error.field}") from None


def asks_of(spec: dict[str, Any], overrides: Overrides) -> dict[int, tuple[str, float | None, int | None]]:
    """Backend, cores and bytes of each number whose override changes what placement looks at."""
    return {
        number: ask_of(overridden(spec, override))
        for number, override in overrides.items()
        if "limits" in override or "backend" in override
    }


def ask_of(spec: dict[str, Any]) -> tuple[str, float | None, int | None]:
    """What placement needs to know of a spec."""
    limits = spec.get("limits") or {}
    return spec["backend"], limits.get("cpu"), limits.get("memory")


def digest(principal: str, request: CreateBatch, spec: Spec) -> str:
    """What tells one request of a key from another."""
    body = [principal, spec.model_dump(mode="json"), request.count, sorted(request.overrides.items())]
    return hashlib.blake2s(orjson.dumps(body, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()
