"""The JSON web tokens of NATS (`ed25519-nkey`), as far as auth callout needs them.

Formats: NATS ADR-14 (JWT), ADR-26 (auth callout); https://github.com/nats-io/jwt. A token is
`header.claims.signature`, each base64url without padding; the signature covers the first two parts.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from typing import Any, Final

import nacl.exceptions
import nacl.signing
import nkeys
import orjson

from dsec.bus.errors import Unauthenticated
from dsec.bus.nats.credentials import public_key

_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}


def sign(claims: dict[str, Any], seed: str) -> str:
    """A token with `claims`, issued now by the key of `seed`."""
    issued = {"iss": public_key(seed), "iat": int(time.time()), "jti": secrets.token_urlsafe(16)}
    text = f"{_encode(orjson.dumps(_HEADER))}.{_encode(orjson.dumps(claims | issued))}"
    return f"{text}.{_encode(nkeys.from_seed(bytearray(seed.encode())).sign(text.encode()))}"


def claims_of(token: str) -> dict[str, Any]:
    """The claims of a token that its issuer really signed. Raises Unauthenticated."""
    try:
        text, _, signature = token.rpartition(".")
        header, claims = (orjson.loads(_decode(part)) for part in text.split("."))
        if header["alg"] != _HEADER["alg"]:
            raise Unauthenticated(f"a token signed by {header['alg']!r}")
        check_signature(claims["iss"], text.encode(), signature)
    except (ValueError, KeyError, TypeError) as error:
        raise Unauthenticated.during("not a token", error) from error
    return dict(claims)


def check_signature(public: str, text: bytes, signature: str) -> None:
    """Raises Unauthenticated unless `signature` (base64) over `text` was made by the nkey `public`."""
    try:
        nacl.signing.VerifyKey(_raw_key(public)).verify(text, _decode(signature))
    except (nacl.exceptions.CryptoError, ValueError, TypeError) as error:
        raise Unauthenticated.during("wrong signature", error) from error


def _raw_key(public: str) -> bytes:
    """The 32 bytes in a public nkey: a prefix byte before them, a checksum of two bytes after them."""
    decoded = base64.b32decode(public + "=" * (-len(public) % 8))
    if len(decoded) != 35 or nkeys.crc16(decoded[:-2]).to_bytes(2, "little") != decoded[-2:]:
        raise ValueError("not a public nkey")
    return decoded[1:-2]


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """base64 of either alphabet, padded or not: clients differ."""
    plain = text.replace("+", "-").replace("/", "_").rstrip("=")
    try:
        return base64.urlsafe_b64decode(plain + "=" * (-len(plain) % 4))
    except binascii.Error as error:
        raise ValueError(f"not base64: {text[:20]!r}") from error
