"""What iam answers when the broker asks about a connection: NATS auth callout (ADR-26), pure.

The broker's request names the client's public nkey, the nonce that it sent to this very connection, and the
client's signature over it. So a recorded answer opens nothing: the next connection has another nonce.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dsec.bus.errors import Unauthenticated
from dsec.bus.nats.broker import ACCOUNT, MAX_PAYLOAD
from dsec.plugins.iam import tokens
from dsec.plugins.iam.entries import Identity
from dsec.plugins.iam.rights import Rights, rights_of

SUBJECT: Final = "$SYS.REQ.USER.AUTH"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A connection that wants in; `user` is the key that the broker made for it, `server` the broker's."""

    server: str
    user: str
    public: str
    nonce: str
    signature: str
    host: str
    name: str


def attempt_in(request: bytes) -> Attempt:
    """The attempt in the broker's request. Raises Unauthenticated when no broker signed it."""
    claims = tokens.claims_of(request.decode("utf-8", "replace"))
    try:
        if not claims["iss"].startswith("N") or claims["aud"] != "nats-authorization-request":
            raise Unauthenticated("not a request of the broker")
        asked = claims["nats"]
        client, options = asked["client_info"], asked["connect_opts"]
        return Attempt(
            server=asked["server_id"]["id"],
            user=asked["user_nkey"],
            public=options.get("nkey", ""),
            nonce=client.get("nonce", ""),
            signature=options.get("sig", ""),
            host=client.get("host", ""),
            name=client.get("name", ""),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise Unauthenticated.during("not an authorization request", error) from error


def check(attempt: Attempt, known: Identity | None) -> Identity:
    """`known`, the owner of the attempt's key, if the attempt has its secret. Raises Unauthenticated."""
    if known is None:
        raise Unauthenticated("unknown key" if attempt.public else "no credentials")
    if not attempt.nonce:
        raise Unauthenticated("the broker sent no nonce")
    tokens.check_signature(attempt.public, attempt.nonce.encode(), attempt.signature)
    return known


def admission(attempt: Attempt, identity: Identity, issuer_seed: str) -> bytes:
    """The answer that lets the connection in with the rights of `identity`."""
    user = _user_claims(attempt.user, identity.owner, rights_of(identity))
    if identity.until:
        user["exp"] = int(identity.until)
    return _answer(attempt, {"jwt": tokens.sign(user, issuer_seed)}, issuer_seed)


def refusal(attempt: Attempt, why: str, issuer_seed: str) -> bytes:
    """The answer that refuses; the broker logs `why` and tells the client nothing of it."""
    return _answer(attempt, {"error": why}, issuer_seed)


def _user_claims(user: str, name: str, rights: Rights) -> dict[str, Any]:
    """No expiry but a former key's: a run of days must not lose its connection. The broker ends one at it."""
    nats: dict[str, Any] = {
        "type": "user",
        "version": 2,
        "pub": {"allow": list(rights.publish)},
        "sub": {"allow": list(rights.subscribe)},
        "subs": rights.subscriptions,
        "data": -1,
        "payload": MAX_PAYLOAD,
        "allowed_connection_types": ["STANDARD"],
    }
    if rights.answer_within:
        nats["resp"] = {"max": 1, "ttl": int(rights.answer_within * 1e9)}
    return {"sub": user, "aud": ACCOUNT, "name": name, "nats": nats}


def _answer(attempt: Attempt, verdict: dict[str, str], issuer_seed: str) -> bytes:
    nats = {"type": "authorization_response", "version": 2} | verdict
    claims = {"sub": attempt.user, "aud": attempt.server, "nats": nats}
    return tokens.sign(claims, issuer_seed).encode()
