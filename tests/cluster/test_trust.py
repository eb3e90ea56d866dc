"""TLS to the broker: who is believed, what is refused and how that is told."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest
import uvloop

from dsec.bus.errors import BrokerDown, SpecError, Untrusted
from dsec.bus.nats.broker import Broker
from dsec.bus.nats.certificates import make_authority, make_server
from dsec.bus.nats.cluster import Cluster, Server
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.servers import Servers
from dsec.bus.nats.wire import Wire
from dsec.sdk import Client
from tests.cluster.conftest import Site
from tests.cluster.trio import Trio, free_ports


async def test_a_client_with_the_ca_reaches_every_server(site: Site) -> None:
    for name in site.trio.names:
        async with site.wire("operator", site.trio.url_of(name)) as wire:
            assert b'"memory"' in (await wire.request("$JS.API.INFO", b"", timeout=5)).data


async def test_large_messages_pass_in_both_directions(site: Site) -> None:
    """Through the buffers of TLS, on the loop that the platform runs on, too."""
    body = bytes(range(256)) * 3000

    async def echoed() -> bytes:
        got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        async with site.wire("u-admin") as wire, site.wire("n-a") as node:
            subject = "event.created.p-default.n-a.s-a-tls"
            await wire.subscribe(subject, lambda message: got.set_result(message.data))
            await node.publish(subject, body)
            return await asyncio.wait_for(got, 10)

    def on_uvloop() -> bytes:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(echoed())

    assert await echoed() == body
    assert await asyncio.to_thread(on_uvloop) == body


async def test_another_ca_is_refused_at_once(site: Site, tmp_path: Path) -> None:
    other, _ = await asyncio.to_thread(make_authority, tmp_path, "another CA")
    url = site.trio.url.replace(str(site.trio.ca), str(other))
    with pytest.raises(Untrusted, match="certificate verify failed"):
        async with asyncio.timeout(5), Client(url, site.prepared.path("u-admin")):
            pass


async def test_a_server_of_another_name_is_refused(site: Site, tmp_path: Path) -> None:
    """Its certificate is of the same CA, but for 127.0.0.1."""
    elsewhere, port = "127.0.0.2", free_ports(1)[0]
    alone = Cluster((Server("nats-1", "127.0.0.1", port, listen=elsewhere),), site.prepared.auth)
    await asyncio.to_thread(alone.write, tmp_path)
    trio = Trio(tmp_path, alone)
    await trio.start("nats-1")
    try:
        with pytest.raises(Untrusted, match="IP address mismatch"):
            async with site.wire("iam", f"tls://{elsewhere}:{port}?ca={trio.ca}"):
                pass
    finally:
        await trio.end("nats-1")


async def test_a_plain_url_of_a_server_with_tls_is_told_what_to_say(site: Site) -> None:
    with pytest.raises(Untrusted, match="speaks only TLS: say tls://"):
        async with site.wire("operator", site.trio.url_of("nats-1").replace("tls", "nats").split("?")[0]):
            pass


async def test_a_tls_url_is_never_served_in_the_clear(site: Site, tmp_path: Path) -> None:
    async with Broker.running(tmp_path) as plain:
        url = plain.url.replace("nats://", "tls://") + f"?ca={site.trio.ca}"
        with pytest.raises(Untrusted, match="does not speak TLS"):
            async with Wire.connect(url, Credentials.new(Role.CORE)):
                pass


async def test_servers_that_are_not_there_are_told_in_time(site: Site) -> None:
    with pytest.raises(BrokerDown, match=r"no broker at tls://127\.0\.0\.1:1,"):
        async with Wire.connect(
            f"tls://127.0.0.1:1,tls://127.0.0.1:2?ca={site.trio.ca}",
            site.prepared.credentials("core"),
            timeout=1,
        ):
            pass


def test_a_ca_file_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for name in ("ca.pem", "missing.pem"):
        with pytest.raises(Untrusted, match=name):
            Servers.parse(f"tls://a?ca={tmp_path / name}").trusting()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("nats://a", "nats://a:4222"),
        ("tls://a:1,tls://[::1]:2?ca=/x%20y/ca.pem", "tls://a:1,tls://[::1]:2?ca=/x%20y/ca.pem"),
        ("tls://a?ca=/ca, tls://b?ca=/ca", "tls://a:4222,tls://b:4222?ca=/ca"),
        ("tls://a", "tls://a:4222"),
    ],
)
def test_urls_are_read_and_written_alike(text: str, read: str) -> None:
    assert str(Servers.parse(text)) == read
    assert Servers.parse(read) == Servers.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "a:4222", "http://a", "nats://", "nats://a:x", "nats://a:1,", "tls://a,nats://b"),
        *("nats://a?ca=/x", "tls://a?ca=/x,tls://b?ca=/y", "tls://a?cert=/x", "tls://u:p@a", "tls://a/path"),
    ],
)
def test_what_is_no_url_of_a_broker_is_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        Servers.parse(text)
    assert caught.value.field == "broker"


def test_keys_are_private_and_the_authority_stays(tmp_path: Path) -> None:
    first = make_authority(tmp_path, "ours")
    content = first[1].read_bytes()
    assert make_authority(tmp_path, "ours")[1].read_bytes() == content
    _, key = make_server(tmp_path / "one", first, ["one.example", "10.0.0.1"])
    assert [stat.S_IMODE(path.stat().st_mode) for path in (first[1], key)] == [0o600, 0o600]
