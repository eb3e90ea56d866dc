"""A context of the `nats` command line for the operator of an installation.

    XDG_CONFIG_HOME=<home> nats micro ls

Format: NATS Architecture Decision Record 4, "Configuration contexts": `nats/context/<name>.json`, every key
present, and `nats/context.txt` with the name of the selected one. The key (an nkey seed) has its own file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from dsec.bus.files import write_private
from dsec.bus.home import Home
from dsec.bus.nats.credentials import Credentials
from dsec.bus.nats.servers import Servers

NAME: Final = "dsec"
_UNUSED: Final = (
    *("token", "user", "password", "creds", "cert", "key", "nsc"),
    *("jetstream_domain", "jetstream_api_prefix", "jetstream_event_prefix"),
)


def write(home: Home, url: str, operator: Credentials) -> Path:
    """Write the context and the seed file, both mode 0600; the context's path. Raises OSError."""
    seed = home.credentials / "operator.nk"
    write_private(seed, operator.seed + "\n")
    context = home.path / "nats" / "context" / f"{NAME}.json"
    context.parent.mkdir(parents=True, exist_ok=True)
    servers = Servers.parse(url)
    body = dict.fromkeys(_UNUSED, "") | {
        "description": f"operator of the dsec installation in {home.path}",
        "url": ",".join(servers.urls),
        "ca": servers.ca,
        "nkey": str(seed),
        "inbox_prefix": operator.inbox,
    }
    write_private(context, json.dumps(body, indent=2) + "\n")
    write_private(home.path / "nats" / "context.txt", NAME)
    return context
