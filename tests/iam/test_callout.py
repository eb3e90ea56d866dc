"""iam's decision, without a broker: a made-up server asks over the in-process bus."""

import base64
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nkeys
import pytest

from dsec.bus import subjects
from dsec.bus.audit import Auditor
from dsec.bus.errors import BrokerDown, DeadlineExceeded
from dsec.bus.home import Home
from dsec.bus.local import Hub
from dsec.bus.messages import Audit
from dsec.bus.nats.appender import Appender
from dsec.bus.nats.broker import ACCOUNT
from dsec.bus.nats.credentials import Credentials, Role, new_seed, public_key
from dsec.bus.transport import Received
from dsec.plugins.iam import AUDITS_PER_SECOND, Iam, Identities
from dsec.plugins.iam.callout import SUBJECT
from dsec.plugins.iam.entries import Identity
from dsec.plugins.iam.issuer import Issuer
from dsec.plugins.iam.pending import Order, Pending
from dsec.plugins.iam.tables import Tables
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


class Prepared:
    """The identities that `prepare` left word of, as the bucket would have them."""

    def __init__(self, home: Home) -> None:
        self.tables = Tables()
        for path in Pending(home.part("iam")).waiting():
            order = Order.decoded(path.read_bytes())
            self.tables.apply(self.tables.attempt(order.carry_out)[1].items())

    async def find(self, public: str) -> Identity | None:
        return self.tables.find(public)


class Away:
    """No bucket can be read."""

    async def find(self, public: str) -> Identity | None:
        raise BrokerDown(f"nobody knows {public}")


@contextlib.asynccontextmanager
async def answering(hub: Hub, home: Home, identities: Identities | None = None) -> AsyncIterator[None]:
    bus = hub.bus("iam")
    async with Appender.running(bus) as appender:
        known = identities or Prepared(home)
        async with Iam(bus, known, Issuer(home.part("iam")), Auditor(appender, "iam")).answering():
            yield


async def decided(hub: Hub, home: Home, data: bytes) -> dict[str, Any]:
    """The `nats` claims of iam's answer, whose addressee is checked."""
    async with answering(hub, home):
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


async def test_while_the_bucket_cannot_be_read_nobody_is_judged(tmp_path: Path) -> None:
    """The broker refuses late then, which clients take for iam's absence."""
    home, hub = Home(tmp_path), Hub()
    admin = Iam.prepare(home).credentials("u-admin")
    asked = request(admin.public, "n", signature_of(admin, "n"))
    async with answering(hub, home, Away()):
        with pytest.raises(DeadlineExceeded):
            await hub.bus("server").request(SUBJECT, asked, timeout=0.5)


async def test_a_former_key_opens_connections_that_end_with_its_grace(tmp_path: Path) -> None:
    home, hub = Home(tmp_path), Hub()
    node = Iam.prepare(home, nodes=["n-a"]).credentials("n-a")
    identities = Prepared(home)
    fresh = dataclasses.replace(node, seed=new_seed())
    order = Order.of("rotate", fresh, grace=60)
    identities.tables.apply(identities.tables.attempt(order.carry_out)[1].items())
    answers = {}
    async with answering(hub, home, identities):
        for who in (node, fresh):
            asked = request(who.public, "n", signature_of(who, "n"))
            answer = await hub.bus("server").request(SUBJECT, asked, timeout=1)
            answers[who.public] = claims_of(claims_of(answer.data.decode())["nats"]["jwt"])
    assert 55 < answers[node.public]["exp"] - time.time() <= 60
    assert "exp" not in answers[fresh.public]


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
    async with answering(hub, home):
        server = hub.bus("server")
        for _ in range(4 * AUDITS_PER_SECOND):
            await server.request(SUBJECT, flood, timeout=1)
    assert AUDITS_PER_SECOND <= len(records) < 4 * AUDITS_PER_SECOND
    assert {record.subject for record in records} == {"audit.iam.connect.none"}
