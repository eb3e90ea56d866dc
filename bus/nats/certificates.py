"""A certificate authority of one's own and the certificates of a cluster's servers, by the program openssl.

The program is on every machine that has CA certificates, and its keys never pass through this process; a
library for a handful of calls at set-up would be one more thing to install on every machine. P-256 keys,
RFC 5280 extensions; a server's certificate is good for both ends of a route.
"""

from __future__ import annotations

import ipaddress
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dsec.bus.errors import InfraError, MissingTool

AUTHORITY_DAYS: Final = 3650
SERVER_DAYS: Final = 825
_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def make_authority(directory: Path, name: str) -> tuple[Path, Path]:
    """`ca.pem` and `ca.key` in `directory`, as they are when they are there.

    Raises MissingTool, InfraError, OSError.
    """
    certificate, key = directory / "ca.pem", directory / "ca.key"
    if not (certificate.exists() and key.exists()):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        _request(
            *("-x509", *_KEY, "-days", str(AUTHORITY_DAYS), "-subj", f"/CN={name}"),
            *("-addext", "basicConstraints=critical,CA:TRUE,pathlen:0"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            *("-keyout", str(key), "-out", str(certificate)),
        )
        key.chmod(0o600)
    return certificate, key


def make_server(directory: Path, authority: tuple[Path, Path], names: Sequence[str]) -> tuple[Path, Path]:
    """`server.pem` and `server.key` for a server that is asked by `names`, host names or addresses.

    They replace what is there. Raises MissingTool, InfraError, OSError.
    """
    certificate, key = directory / "server.pem", directory / "server.key"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    _request(
        *("-x509", *_KEY, "-days", str(SERVER_DAYS), "-subj", f"/CN={names[0]}"),
        *("-CA", str(authority[0]), "-CAkey", str(authority[1])),
        *("-addext", f"subjectAltName={','.join(_alternative(name) for name in names)}"),
        *("-addext", "basicConstraints=critical,CA:FALSE"),
        *("-addext", "keyUsage=critical,digitalSignature"),
        *("-addext", "extendedKeyUsage=serverAuth,clientAuth"),
        *("-keyout", str(key), "-out", str(certificate)),
    )
    key.chmod(0o600)
    return certificate, key


def _alternative(name: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        return f"DNS:{name}"


def _request(*options: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise MissingTool("openssl is not here: install the package of that name")
    # -config: the machine's own openssl.cnf would add extensions of its own
    done = subprocess.run(
        [program, "req", "-config", "/dev/null", *options], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InfraError(f"openssl made no certificate: {done.stderr.strip()[-300:]}")
