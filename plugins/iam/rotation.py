"""New keys for what an installation runs on: its parts, nodes and drivers, iam itself, and the issuer.

A part reads its file again when it connects again, so it takes the new key up by itself: the file is
replaced, iam is told (`pending`), and ends the connections that were begun before. What the broker's
configuration names, the issuer and iam, waits in `<file>.next` until the server is down (`settle`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dsec.bus import ids
from dsec.bus.errors import GoneError
from dsec.bus.home import Home
from dsec.bus.nats.broker import BrokerAuth
from dsec.bus.nats.credentials import Credentials, Role
from dsec.plugins.iam.issuer import NAME, Issuer
from dsec.plugins.iam.pending import Order, Pending

PARTS: Final = (Role.CORE, Role.SCHEDULER, Role.JOURNAL, Role.OPERATOR)
ISSUER: Final = "issuer"
OF_THE_BROKER: Final = (Role.IAM.value, ISSUER)
"""What is rotated with the broker's configuration."""
NEXT: Final = ".next"


def rotate(home: Home, owner: str, *, grace: float = 0.0) -> Path:
    """Another key for a part, a node, a driver or a principal; the file that has it.

    `grace`: seconds for which the former key is accepted, so that copies of the file can be replaced.
    Repeatable after a crash. Raises BadId, GoneError (this home has no such credentials), OSError.
    """
    file = home.credentials / f"{owner}.json"
    fresh = _known(file, owner).renewed()
    fresh.save(file)
    Pending(home.part("iam")).note(Order.of("rotate", fresh, grace=grace))
    return file


def _known(file: Path, owner: str) -> Credentials:
    if file.exists():
        return Credentials.load(file)
    if owner in PARTS:
        return Credentials.new(Role(owner))
    ids.check({"u-": "principal", "d-": "plugin"}.get(owner[:2], "node"), owner)
    if owner.startswith("n-"):
        return Credentials.new(Role.EDGE, node=owner)
    raise GoneError(f"there is no {file}: name one of this home's credentials")


def renew(home: Home, what: str) -> None:
    """Make the next key of `iam` or of the `issuer`; it counts from `settle` on. Raises OSError."""
    if what == ISSUER:
        Issuer.renew(home.part("iam"), NAME + NEXT)
    else:
        file = home.credentials / f"{Role.IAM.value}.json"
        Credentials.load(file).renewed().save(file.with_name(file.name + NEXT))


def settle(home: Home) -> None:
    """Put the next keys in their places, if there are any. Repeatable.

    To be called while no server runs that knows the former ones.
    """
    for file in (home.credentials / f"{Role.IAM.value}.json", home.part("iam") / NAME):
        following = file.with_name(file.name + NEXT)
        if following.exists():
            following.replace(file)


def present(home: Home) -> BrokerAuth:
    """What the broker is configured with."""
    iam = Credentials.load(home.credentials / f"{Role.IAM.value}.json")
    return BrokerAuth(Issuer(home.part("iam")).public, iam.public)
