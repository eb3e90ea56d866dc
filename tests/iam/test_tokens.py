"""Tokens: what was signed reads back, and nothing else does."""

import base64

import nkeys
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.bus.errors import Unauthenticated
from dsec.bus.nats.credentials import new_seed, public_key
from dsec.plugins.iam.callout import attempt_in
from dsec.plugins.iam.tokens import check_signature, claims_of, sign

SEED = new_seed(nkeys.PREFIX_BYTE_ACCOUNT)
TOKEN = sign({"sub": "U", "nats": {"n": 1}}, SEED)


def test_a_signed_token_reads_back_with_its_issuer() -> None:
    claims = claims_of(TOKEN)
    assert (claims["sub"], claims["nats"]) == ("U", {"n": 1})
    assert claims["iss"] == public_key(SEED)


@given(st.integers(0, len(TOKEN) - 1), st.sampled_from("AZaz09-_."))
def test_a_token_with_one_character_changed_is_refused(at: int, other: str) -> None:
    changed = TOKEN[:at] + other + TOKEN[at + 1 :]
    if changed == TOKEN or _same_bytes(changed):
        return
    with pytest.raises(Unauthenticated):
        claims_of(changed)


@given(st.binary(max_size=200))
@settings(max_examples=50)
def test_bytes_that_are_no_token_are_refused(data: bytes) -> None:
    with pytest.raises(Unauthenticated):
        attempt_in(data)


def test_a_token_of_somebody_else_than_a_server_is_no_callout() -> None:
    with pytest.raises(Unauthenticated, match="not a request of the broker"):
        attempt_in(sign({"aud": "nats-authorization-request", "nats": {}}, SEED).encode())


def test_a_signature_of_either_alphabet_is_taken_and_another_key_refused() -> None:
    seed = new_seed()
    raw = nkeys.from_seed(bytearray(seed.encode())).sign(b"nonce")
    for encoded in (base64.b64encode(raw), base64.urlsafe_b64encode(raw).rstrip(b"=")):
        check_signature(public_key(seed), b"nonce", encoded.decode())
        with pytest.raises(Unauthenticated):
            check_signature(public_key(seed), b"another nonce", encoded.decode())
        with pytest.raises(Unauthenticated):
            check_signature(public_key(SEED), b"nonce", encoded.decode())


def _same_bytes(changed: str) -> bool:
    """The last character of base64 may have bits that mean nothing."""

    def decoded(token: str) -> list[bytes]:
        return [base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.split(".")]

    try:
        return decoded(changed) == decoded(TOKEN)
    except ValueError:
        return False
