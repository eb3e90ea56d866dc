"""iam's decision, without a broker: a made-up server asks over the in-process bus."""

import base64
from pathlib import Path
from typing import Any

import nkeys
import pytest

from dsec.bus import subjects
from dsec.bus.errors import DeadlineExceeded
from dsec.bus.home import Home
from dsec.bus.host import Context
from dsec.bus.local import Hub
from dsec.bus.messages import Audit
from dsec.bus.nats.broker import ACCOUNT
from dsec.bus.nats.credentials import Credentials, Role, new_seed, public_key
from dsec.bus.transport import Received
from dsec.plugins.iam import AUDITS_PER_SECOND, Iam
from dsec.plugins.iam.callout import SUBJECT
from dsec.plugins.iam.tokens import claims_of, sign

SERVER = new_seed(nkeys.PREFIX_BYTE_SERVER)
USER = public_key(new_seed())


def request(public: str, nonce: str, signature: str, seed: str = SERVER) -> bytes:
    """What nats-server 2.15 sends."""
    nats: dict[str, Any] = {
        "server_id": {"id": public_key(SERVER), "name": "x", "host": "127.0.0.1"},
        "user_nkey": USER,
        "client_info": {"host": "127.0.0.1", "id": 7, "name": "hello", "nonce": nonce},
        "connect_opts": {"nkey": public, "sig": signature, "protocol": 1},
        "type": "authorization_request",
        "version": 2,
    }
    return sign({"aud": "nats-authorization-request", "nats": nats}, seed).encode()


def signature_of(credentials: Credentials, nonce: str) -> str:
    pair = nkeys.from_seed(bytearray(credentials.seed.encode()))
    return base64.b64encode(pair.sign(nonce.encode())).decode()


async def decided(hub: Hub, home: Home, data: bytes) -> dict[str, Any]:
    """The `nats` claims of iam's answer, whose addressee is checked."""
    async with Iam.running(hub.bus("iam"), Context(home.part("iam"))):
        answer = await hub.bus("server").request(SUBJECT, data, timeout=1)
    claims = claims_of(answer.data.decode())
    assert (claims["sub"], claims["aud"]) == (USER, public_key(SERVER))
    nats: dict[str, Any] = claims["nats"]
    return nats


async def stored(hub: Hub) -> list[Received]:
    """Audit records from now on, acknowledged as the AUDIT stream would."""
    records: list[Received] = []
    bus = hub.bus("stream")

    def keep(message: Received) -> None:
        records.append(message)
        hub.route(Received(message.reply, "", b'{"stream":"AUDIT","seq":1}'))

    await bus.subscribe("audit.>", keep)
    return records


async def test_the_holder_of_an_enrolled_key_gets_exactly_its_rights(tmp_path: Path) -> None:
    home, hub = Home(tmp_path), Hub()
    admin = Iam.prepare(home).credentials("u-admin")
    verdict = await decided(hub, home, request(admin.public, "n0nce", signature_of(admin, "n0nce")))
    user = claims_of(verdict["jwt"])
    assert (user["sub"], user["aud"], user["name"]) == (USER, ACCOUNT, "u-admin")
    assert user["nats"]["pub"]["allow"] == subjects.tenant_publish("p-default", "u-admin")
    assert user["nats"]["sub"]["allow"] == subjects.tenant_subscribe("p-default", "u-admin")
    assert "resp" not in user["nats"]
    assert "exp" not in user


async def test_a_node_may_answer_once_and_in_time(tmp_path: Path) -> None:
    home, hub = Home(tmp_path), Hub()
    node = Iam.prepare(home, nodes=["n-a"]).credentials("n-a")
    verdict = await decided(hub, home, request(node.public, "n", signature_of(node, "n")))
    assert claims_of(verdict["jwt"])["nats"]["resp"] == {"max": 1, "ttl": 150_000_000_000}


@pytest.mark.parametrize("nonce", ["", "another"])
async def test_a_signature_over_another_nonce_or_none_is_refused_and_audited(
    tmp_path: Path, nonce: str
) -> None:
    home, hub = Home(tmp_path), Hub()
    admin = Iam.prepare(home).credentials("u-admin")
    records = await stored(hub)
    verdict = await decided(hub, home, request(admin.public, nonce, signature_of(admin, "n0nce")))
    assert "jwt" not in verdict
    assert verdict["error"]
    assert [record.subject for record in records] == ["audit.iam.connect.p-default"]
    entry = Audit.model_validate_json(records[0].data)
    assert (entry.op, entry.principal, entry.outcome) == ("iam.connect", "u-admin", "unauthenticated")


async def test_what_no_server_signed_gets_no_answer(tmp_path: Path) -> None:
    home, hub = Home(tmp_path), Hub()
    admin = Iam.prepare(home).credentials("u-admin")
    forged = request(admin.public, "n", signature_of(admin, "n"), seed=admin.seed)
    with pytest.raises(DeadlineExceeded):
        await decided(hub, home, forged)


async def test_a_flood_of_refusals_fills_the_audit_trail_at_a_bounded_rate(tmp_path: Path) -> None:
    home, hub = Home(tmp_path), Hub()
    Iam.prepare(home)
    records = await stored(hub)
    flood = request(Credentials.new(Role.CORE).public, "n", "")
    async with Iam.running(hub.bus("iam"), Context(home.part("iam"))):
        server = hub.bus("server")
        for _ in range(4 * AUDITS_PER_SECOND):
            await server.request(SUBJECT, flood, timeout=1)
    assert AUDITS_PER_SECOND <= len(records) < 4 * AUDITS_PER_SECOND
    assert {record.subject for record in records} == {"audit.iam.connect.none"}
