"""What a second machine needs to run the control plane of an installation: one file with its secrets.

A tar archive, mode 0600: the issuer's key and the credentials of iam, core, scheduler, journal and operator.
Whoever has it is the control plane: it is copied over a private way and deleted.
"""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Final

from dsec.bus.errors import Conflict, SpecError
from dsec.bus.files import write_private
from dsec.bus.home import Home
from dsec.bus.nats.credentials import Role
from dsec.plugins.iam.issuer import NAME

_ROLES: Final = (Role.IAM, Role.CORE, Role.SCHEDULER, Role.JOURNAL, Role.OPERATOR)
MEMBERS: Final = (f"parts/iam/{NAME}", *(f"credentials/{role}.json" for role in _ROLES))
_JOINED: Final = "joined"
_MOST: Final = 64 * 1024


def export(home: Home, file: Path) -> None:
    """Write the bundle. Raises SpecError (the home is not prepared, or the file exists), OSError."""
    missing = [name for name in MEMBERS if not (home.path / name).exists()]
    if missing:
        raise SpecError(f"{home.path} has no {missing[0]}: start the control plane there once")
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise SpecError(f"{file} exists: choose another name", field="file") from None
    with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w") as archive:
        for name in MEMBERS:
            content = (home.path / name).read_bytes()
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o600
            archive.addfile(member, io.BytesIO(content))


def read(file: Path) -> dict[str, str]:
    """The members by name, all of them. Raises SpecError when it is not a whole bundle, OSError."""
    found: dict[str, str] = {}
    try:
        with tarfile.open(file) as archive:
            for member in archive:
                content = archive.extractfile(member)
                if member.name in MEMBERS and member.size <= _MOST and content is not None:
                    found[member.name] = content.read().decode()
    except (tarfile.TarError, UnicodeDecodeError) as error:
        raise SpecError(f"{file} is not a bundle: {error}", field="file") from error
    if set(found) != set(MEMBERS):
        raise SpecError(f"{file} is not a whole bundle", field="file")
    return found


def bring_in(home: Home, file: Path) -> None:
    """Put the bundle into a home, over an older one if there is one. Repeatable.

    Raises SpecError, Conflict (the home has a broker of its own, so it is another installation), OSError.
    """
    found = read(file)
    if (home.broker / "jetstream").exists():
        raise Conflict(f"{home.path} is an installation of its own: choose another home")
    write_private(home.part("iam") / _JOINED, "")
    for name, content in found.items():
        write_private(home.path / name, content)


def joined(home: Home) -> bool:
    """Whether the home runs parts of an installation that began elsewhere."""
    return (home.part("iam") / _JOINED).exists()
