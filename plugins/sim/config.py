"""What a simulated node is like: its size, its delays, how often things fail, what commands print.

Unknown fields are refused. The dice are seeded: a node of the same name under the same seed rolls the same.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError

from dsec.bus.errors import DsecError, Failure, GoneError, InfraError, LimitError, PolicyError, SpecError
from dsec.bus.frames import INLINE_BYTES
from dsec.bus.messages import Ended
from dsec.bus.spec import GIB, MIB, Limits, Strict

Share = Annotated[float, Field(ge=0, le=1)]
Verb = Literal["create", "destroy", "pause", "resume", "renew", "exec"]
Text = Annotated[str, Field(max_length=INLINE_BYTES // 4)]  # a character has up to four bytes

ERRORS: Final[dict[Failure, type[DsecError]]] = {
    Failure.INFRA: InfraError,
    Failure.LIMIT: LimitError,
    Failure.POLICY: PolicyError,
    Failure.SPEC: SpecError,
    Failure.GONE: GoneError,
}


class Delay(Strict):
    """Milliseconds that an operation takes: uniform between `least` and `most`."""

    least: float = Field(0.0, ge=0)
    most: float = Field(0.0, ge=0)

    def seconds(self, dice: random.Random) -> float:
        return dice.uniform(self.least, max(self.least, self.most)) / 1000


class Fault(Strict):
    """A share of the operations `verb` that fail, with an error of class `failure`."""

    verb: Verb
    failure: Failure
    rate: Share
    message: str = "a simulated failure"

    def error(self) -> DsecError:
        return ERRORS[self.failure](self.message)


class Deaths(Strict):
    """Sandboxes die by themselves after `mean` seconds on average (exponentially distributed)."""

    mean: float = Field(gt=0)
    failure: Literal[Failure.INFRA, Failure.LIMIT, Failure.POLICY] = Failure.INFRA
    reason: str = "a simulated death"


class Outcome(Strict):
    """What a command does whose first words are `argv` (none: every command)."""

    argv: tuple[str, ...] = ()
    stdout: Text = ""
    stderr: Text = ""
    ended: Ended = Ended.EXIT
    code: int | None = 0
    signal: int | None = None
    wall_ms: float = Field(0.0, ge=0)


class SimConfig(Strict):
    """Size in cores, bytes and sandboxes; `outcomes`: the first that matches a command counts."""

    seed: int = 0
    backends: tuple[str, ...] = ("sim",)
    cpu: float = Field(128.0, gt=0)
    memory: int = Field(1024 * GIB, gt=0)
    sandboxes: int = Field(100_000, ge=0)
    defaults: Limits = Limits(cpu=0.1, memory=64 * MIB, pids=256, disk=GIB, nofile=1024, log_bytes=64 * MIB)
    delays: dict[Verb, Delay] = Field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    deaths: Deaths | None = None
    outcomes: tuple[Outcome, ...] = ()

    @classmethod
    def load(cls, path: Path) -> SimConfig:
        """From a JSON file. Raises SpecError naming the field."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise SpecError.during(f"{path} cannot be read", error) from error
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise SpecError(f"{path}: {field}: {first['msg']}", field=field) from None

    def outcome(self, argv: tuple[str, ...]) -> Outcome:
        """What the command `argv` does: nothing, unless told."""
        for outcome in self.outcomes:
            if argv[: len(outcome.argv)] == outcome.argv:
                return outcome
        return Outcome()


class Fate:
    """The dice of one node."""

    def __init__(self, config: SimConfig, node: str) -> None:
        self._config = config
        self._dice = random.Random(f"{config.seed}/{node}")  # noqa: S311 - a simulation, not a secret
        self._faults: dict[str, list[Fault]] = {}
        for fault in config.faults:
            self._faults.setdefault(fault.verb, []).append(fault)

    def delay(self, verb: Verb) -> float:
        """Seconds that this operation takes."""
        delay = self._config.delays.get(verb)
        return 0.0 if delay is None else delay.seconds(self._dice)

    def strike(self, verb: Verb) -> None:
        """Raises the error with which this operation fails, if it does."""
        for fault in self._faults.get(verb, ()):
            if self._dice.random() < fault.rate:
                raise fault.error()

    def lifetime(self) -> float | None:
        """Seconds until a sandbox made now dies by itself."""
        deaths = self._config.deaths
        return None if deaths is None else self._dice.expovariate(1 / deaths.mean)
