"""What a user asks for and what a node applies: the only models that refuse unknown fields."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from dsec.bus.errors import SpecError, TooLarge, UnknownField

LayerRef = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,127}$")]
"""The catalog name of a layer, for example `debian-12-python` or `sqlparse-0.4.4`."""
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
NoNul = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
"""What can be passed to a program at all."""
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MAX_SPEC: Final = 64 * KIB
"""Bytes of a spec as JSON: it is kept in the registry, in every event, and listed with up to 1,000 others."""
MAX_SECONDS: Final = 7 * 86400.0
MAX_LAYERS: Final = 128
"""Toolkits of an image, and packs; overlayfs takes 500 layers."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Image(Strict):
    """Layers from the bottom up: base (OS), workspace (the task), toolkits, packs (packed upper layers)."""

    base: LayerRef
    workspace: LayerRef | None = None
    toolkits: tuple[LayerRef, ...] = Field((), max_length=MAX_LAYERS)
    packs: tuple[LayerRef, ...] = Field((), max_length=MAX_LAYERS)

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"base": value} if isinstance(value, str) else value

    @property
    def layers(self) -> tuple[str, ...]:
        """All layer names, bottom first."""
        middle = (self.workspace,) if self.workspace else ()
        return (self.base, *middle, *self.toolkits, *self.packs)


class Limits(Strict):
    """What is asked for; `None` means the node's default. The answer tells the limits as applied."""

    cpu: float | None = Field(None, gt=0, le=1024, description="cores")
    memory: int | None = Field(None, ge=4 * MIB, lt=1 << 50, description="bytes, page cache included")
    pids: int | None = Field(None, ge=4, le=1 << 22, description="processes and threads")
    disk: int | None = Field(None, ge=MIB, lt=1 << 50, description="bytes of the writable layer")
    nofile: int | None = Field(None, ge=16, le=1 << 30, description="descriptors per process")
    log_bytes: int | None = Field(None, ge=KIB, lt=1 << 50, description="captured output per exec, bytes")

    def over(self, defaults: Limits) -> Limits:
        """These limits, with `defaults` where nothing was asked."""
        return defaults.model_copy(update=self.model_dump(exclude_none=True))

    def asked(self) -> frozenset[str]:
        """Names of the limits that were asked for."""
        return frozenset(self.model_dump(exclude_none=True))


class Spec(Strict):
    """One sandbox, as its user wants it. Seconds unless told otherwise."""

    backend: str = Field("container", pattern=r"^[a-z][a-z0-9_-]{0,31}$", description="name of a driver")
    image: Image
    limits: Limits = Limits()
    cpu_class: Literal["latency", "besteffort"] = "latency"
    ttl: float = Field(24 * 3600, gt=0, le=MAX_SECONDS, description="after creation the sandbox is destroyed")
    idle_ttl: float | None = Field(
        None, gt=0, le=MAX_SECONDS, description="destroyed after so long without a request or exec"
    )
    network: Literal["none"] = "none"
    user: NoNul = Field(
        "root", max_length=64, description="user name or uid[:gid] of commands, unless they tell"
    )
    env: dict[EnvName, NoNul] = Field(default_factory=dict)
    job: str | None = Field(None, pattern=r"^j-[a-z0-9][a-z0-9_-]{0,47}$")
    labels: dict[str, str] = Field(default_factory=dict)


def parse_spec(data: dict[str, Any]) -> Spec:
    """`data` as a Spec. Raises UnknownField or SpecError naming the field by its dotted path, TooLarge."""
    try:
        spec = Spec.model_validate(data)
    except ValidationError as error:
        raise refusal(error) from None
    size = len(orjson.dumps(spec.model_dump(mode="json")))
    if size > MAX_SPEC:
        raise TooLarge(f"the spec takes {size} bytes, {MAX_SPEC} are possible: use files", field="spec")
    return spec


def refusal(error: ValidationError) -> SpecError:
    """What a user is told of a model that refuses: UnknownField or SpecError, naming the first such field."""
    details = error.errors(include_url=False, include_input=False)
    unknown = [one for one in details if one["type"] == "extra_forbidden"]
    chosen = (unknown or details)[0]
    field = ".".join(str(part) for part in chosen["loc"])
    if unknown:
        return UnknownField(f"{field}: there is no such field", field=field)
    return SpecError(f"{field}: {chosen['msg']}", field=field)
