"""Where the broker is and who we are, when the caller does not say.

`DSEC_URL` and `DSEC_CREDENTIALS` (a file) come first, and `DSEC_CA` (a PEM file) for URLs that name no CA;
otherwise the word that a running `dsec up` left in
the home of this machine's platform (`DSEC_HOME`, default `/var/lib/dsec`) tells both.
"""

from __future__ import annotations

import os
from pathlib import Path

from dsec.bus.errors import BrokerDown
from dsec.bus.home import Home
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.servers import Servers


def servers(given: str | None) -> str:
    """URL of the broker, or several (`bus.nats.servers`). Raises BrokerDown when none is known, SpecError."""
    told = given or os.environ.get("DSEC_URL") or _announced("url")
    return str(Servers.parse(told).believing(os.environ.get("DSEC_CA", "")))


def credentials(given: Credentials | str | os.PathLike[str] | None) -> Credentials:
    """Who we are. Raises Unauthenticated for a file that is not there, not right or open to others."""
    if isinstance(given, Credentials):
        return given
    return Credentials.load(credentials_file(given))


def credentials_file(given: str | os.PathLike[str] | None) -> Path:
    """The file that tells who we are. Raises BrokerDown when none is known."""
    return Path(given or os.environ.get("DSEC_CREDENTIALS") or _announced("credentials"))


def _announced(key: str) -> str:
    ready = Home.default().ready()
    if key not in ready:
        raise BrokerDown(
            f"what runs on {Home.default().path} tells no {key}: set DSEC_URL and DSEC_CREDENTIALS"
        )
    return str(ready[key])
