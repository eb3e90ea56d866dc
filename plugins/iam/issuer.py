"""The account key that signs iam's word: `parts/iam/issuer.json`, mode 0600, the same wherever iam runs.

It is read again when the file was replaced, so that it can be rotated while iam runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import nkeys

from dsec.bus.errors import Unauthenticated
from dsec.bus.files import write_private
from dsec.bus.nats.credentials import new_seed, public_key

NAME: Final = "issuer.json"


class Issuer:
    """Made at first use. Attributes raise Unauthenticated when the file is damaged, OSError."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._inode = 0
        self._seed = ""
        if not self._path.exists():
            self.renew(directory)

    @classmethod
    def renew(cls, directory: Path, name: str = NAME) -> None:
        """Write another key."""
        seed = new_seed(nkeys.PREFIX_BYTE_ACCOUNT)
        write_private(directory / name, json.dumps({"seed": seed}) + "\n")

    @property
    def seed(self) -> str:
        status = self._path.stat()
        if status.st_ino != self._inode:
            self._seed, self._inode = self._read(), status.st_ino
        return self._seed

    @property
    def public(self) -> str:
        """What the broker's configuration names."""
        return public_key(self.seed)

    def _read(self) -> str:
        try:
            return str(json.loads(self._path.read_text(encoding="utf-8"))["seed"])
        except (ValueError, KeyError, TypeError) as error:
            raise Unauthenticated.during(f"{self._path} holds no key", error) from error
