"""Where the broker is: one URL or several with commas between them, and which certificates are believed.

    nats://127.0.0.1:4222                                                    one server, in the clear
    tls://nats-1:4222,tls://nats-2:4222,tls://nats-3:4222?ca=/etc/dsec/ca.pem   a cluster

With `tls` each server must show a certificate of the name that it was asked by; the trust anchors are the PEM
file `ca`, or the system's without it. The whole text travels as one word (`--broker`, `--url`, `DSEC_URL`,
`up.json`), as libpq's connection URIs carry `sslrootcert`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

from dsec.bus.errors import SpecError, Untrusted

SCHEMES: Final = ("nats", "tls")
PORT: Final = 4222


@dataclass(frozen=True, slots=True)
class Servers:
    """`urls` without parameters, all `tls` or all not; `ca` is a PEM file, empty: the system's anchors."""

    urls: tuple[str, ...]
    ca: str = ""

    @classmethod
    def parse(cls, text: str) -> Servers:
        """Raises SpecError: not such URLs, tls and plain ones mixed, or `ca` without tls."""
        found = [_parse(one.strip()) for one in text.split(",")]
        anchors = {ca for _, ca in found if ca}
        servers = cls(tuple(url for url, _ in found), anchors.pop() if anchors else "")
        if anchors:
            raise SpecError("the broker's URLs name more than one CA file: put all into one", field="broker")
        if len({urlsplit(url).scheme for url in servers.urls}) > 1:
            raise SpecError("the broker's URLs are all tls:// or all nats://", field="broker")
        if servers.ca and not servers.tls:
            raise SpecError("a CA file goes with tls:// URLs", field="broker")
        return servers

    @property
    def tls(self) -> bool:
        return self.urls[0].startswith("tls://")

    def believing(self, ca: str) -> Servers:
        """With this CA file unless another is named, or there is no TLS."""
        return Servers(self.urls, self.ca or (ca if self.tls else ""))

    def __str__(self) -> str:
        """What `parse` reads."""
        return ",".join(self.urls) + (f"?ca={quote(self.ca)}" if self.ca else "")

    def trusting(self) -> ssl.SSLContext | None:
        """How servers are verified; None: they are not. Raises Untrusted when the CA file cannot be used."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except (OSError, ssl.SSLError) as error:
            raise Untrusted.during(f"no CA certificates in {self.ca or 'the system'}", error) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context


def of(hosts: Iterable[tuple[str, int]], ca: Path | None = None) -> Servers:
    """The servers at these names and ports; `ca`: they speak TLS."""
    scheme = "nats" if ca is None else "tls"
    return Servers(tuple(f"{scheme}://{host}:{port}" for host, port in hosts), "" if ca is None else str(ca))


def _parse(text: str) -> tuple[str, str]:
    wrong = SpecError(f"{text!r} is not the URL of a broker, such as tls://nats-1:{PORT}", field="broker")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port or PORT
        options = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError:
        raise wrong from None
    extra = parts.username or parts.password or parts.fragment or parts.path.strip("/")
    if parts.scheme not in SCHEMES or not host or extra or set(options) - {"ca"}:
        raise wrong
    where = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{where}:{port}", options["ca"][-1] if options else ""
