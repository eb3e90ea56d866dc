"""`/metrics` and `/healthz` over HTTP: ports, pages, health, a loop that hangs, a client that does."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
import urllib.error
import urllib.request

import orjson
import pytest

from dsec.bus.errors import AlreadyRunning, MissingTool, SpecError
from dsec.bus.local import Hub
from dsec.bus.metrics import serve
from dsec.bus.metrics.parts import seen
from dsec.bus.metrics.serve import address, exposed
from dsec.bus.workload import Workload


def page_of(url: str) -> tuple[int, str, str]:
    """Status, content type and body."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


async def get(url: str) -> tuple[int, str, str]:
    """`page_of`, which waits for this very event loop."""
    return await asyncio.to_thread(page_of, url)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("localhost:0", ("127.0.0.1", 0)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_an_address_is_a_port_or_an_ip_and_a_port(text: str, told: tuple[str, int]) -> None:
    assert address(text) == told


@pytest.mark.parametrize(
    "text", ["", "x", "example.org:80", "127.0.0.1:", "127.0.0.1:65536", "-1", "1.2.3:4"]
)
def test_anything_else_is_refused_naming_the_option(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        address(text)
    assert caught.value.field == "metrics"


async def test_nothing_listens_unless_it_is_asked_for() -> None:
    async with exposed("") as metrics:
        assert metrics.url == ""


async def test_metrics_have_the_process_too_and_other_paths_are_not_found() -> None:
    async with exposed("0") as metrics:
        status, kind, page = await get(f"{metrics.url}/metrics")
        assert (status, kind.split(";")[0]) == (200, "text/plain")
        for name in ("process_resident_memory_bytes", "dsec_build_info", "dsec_event_loop_delay_seconds"):
            assert f"\n{name}" in page
        assert (await get(f"{metrics.url}/"))[0] == 404
    with pytest.raises(urllib.error.URLError):
        await get(f"{metrics.url}/metrics")


async def test_it_is_well_only_while_it_serves_with_a_broker_and_no_part_objects() -> None:
    bus, load = Hub().bus("n-a"), Workload()
    bus.workload = load  # type: ignore[attr-defined]  # as Wire has one
    reasons = [""]

    async def health() -> tuple[int, dict[str, object]]:
        status, _, body = await get(f"{metrics.url}/healthz")
        return status, orjson.loads(body)

    async with exposed("127.0.0.1:0") as metrics:
        assert (await health())[0] == 503  # it starts
        with seen("edge", "n-a", bus), metrics.serving(), load.figures.telling(check=lambda: reasons[0]):
            assert await health() == (
                200,
                {
                    "ok": True,
                    "state": "serving",
                    "parts": [{"part": "edge", "node": "n-a", "connected": True, "why": []}],
                },
            )
            reasons[0] = "frozen"
            status, told = await health()
            assert (status, told["ok"]) == (503, False)
            reasons[0] = ""
            bus.disconnect()
            assert (await health())[0] == 503
            bus.reconnect()
            assert (await health())[0] == 200
        assert (await health())[0] == 503


async def test_a_taken_port_is_told_as_that_and_one_that_is_not_ours_too() -> None:
    async with exposed("0") as metrics:
        with pytest.raises(AlreadyRunning, match="--metrics"):
            async with exposed(metrics.url.removeprefix("http://")):
                pass
    with pytest.raises(SpecError):
        async with exposed("203.0.113.1:9464"):  # of RFC 5737: nobody's
            pass


async def test_without_prometheus_client_it_tells_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dsec.bus.metrics.text", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingTool, match=r"opendsec\[node\]"):
        async with exposed("0"):
            pass


async def test_ipv6_is_served() -> None:
    async with exposed("[::1]:0") as metrics:
        assert metrics.url.startswith("http://[::1]:")
        assert (await get(f"{metrics.url}/metrics"))[0] == 200


async def test_a_loop_that_hangs_is_told_and_hangs_no_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "LOOP_WITHIN", 0.2)
    async with exposed("0") as metrics:
        asking = asyncio.get_running_loop().run_in_executor(None, page_of, f"{metrics.url}/metrics")
        time.sleep(1.5)  # noqa: ASYNC251 - this is what hangs
        status, _, body = await asking
    assert status == 503
    assert "event loop" in body


async def test_clients_that_say_nothing_hold_up_neither_others_nor_the_end() -> None:
    began = time.monotonic()
    async with exposed("0") as metrics:
        host, port = metrics.url.removeprefix("http://").split(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(5)]
        assert (await get(f"{metrics.url}/metrics"))[0] == 200
    assert time.monotonic() - began < 5
    for one in silent:
        one.close()
