"""Commands through the client: results, retries under one operation id, typed errors."""

import asyncio
from pathlib import Path

import pytest

from dsec.bus.errors import (
    BadId,
    BrokerDown,
    Conflict,
    Failure,
    NoSuchProgram,
    Overloaded,
    SpecError,
    TooLarge,
    UnknownField,
)
from dsec.bus.ids import exec_of
from dsec.bus.local import Hub
from dsec.sdk import Client, CommandFailed, Ended, Sandbox
from dsec.sdk import link as link_module
from tests.sdk.conftest import asynchronous
from tests.sdk.support import NODE, PRINCIPAL, PROJECT, SANDBOX, Peer, peer_on


async def test_a_short_command_is_one_request_and_no_subscription(peer: Peer, sandbox: Sandbox) -> None:
    result = await sandbox.run("echo out; exit 3")
    assert (result.ended, result.code, result.stdout, result.log, result.ok) == (
        Ended.EXIT,
        3,
        "out\n",
        7,
        False,
    )
    assert [verb for verb, _ in peer.ops] == ["sandbox.create", "exec.start"]


async def test_a_sequence_is_executed_as_it_is(sandbox: Sandbox) -> None:
    assert (await sandbox.run(["printf", "%s|", "a b", "$HOME"])).stdout == "a b|$HOME|"


async def test_bytes_that_are_no_text_are_kept_and_shown_replaced(sandbox: Sandbox) -> None:
    result = await sandbox.run("printf '\\226\\377\\000ok'")
    assert result.stdout_bytes == b"\x96\xff\x00ok"
    assert result.stdout == "\ufffd\ufffd\x00ok"


async def test_a_failed_command_is_raised_only_when_asked_for(sandbox: Sandbox) -> None:
    with pytest.raises(CommandFailed) as caught:
        await sandbox.run("exit 4", check=True)
    assert caught.value.result.code == 4
    assert (caught.value.code, caught.value.failure) == ("command_failed", Failure.SPEC)


async def test_stdin_goes_with_the_start_or_is_streamed_when_it_is_large(sandbox: Sandbox) -> None:
    assert (await sandbox.run(["cat"], stdin="hello")).stdout == "hello"
    large = bytes(range(256)) * 8000
    assert (await sandbox.run(["cat"], stdin=large)).stdout_bytes == large


async def test_a_lost_answer_is_asked_for_again_under_the_same_operation(
    peer: Peer, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "ATTEMPT", 0.3)
    peer.lose_answers["exec.start"] = 2
    result = await sandbox.run("echo once >> count; cat count", key="key-1")
    assert result.stdout == "once\n"
    assert [op for verb, op in peer.ops if verb == "exec.start"] == ["key-1"] * 3
    assert peer.done[exec_of("key-1")] == 1


async def test_an_exec_that_ended_before_its_start_was_repeated_is_read_from_the_log(
    peer: Peer, sandbox: Sandbox
) -> None:
    first = await sandbox.run("echo once >> count; cat count", key="key-2")
    again = await sandbox.run("echo once >> count; cat count", key="key-2")
    assert first.stdout_bytes == again.stdout_bytes == b"once\n"
    assert first.exec == again.exec
    assert [verb for verb, _ in peer.ops].count("log.fetch") == 1


async def test_a_shed_request_is_repeated_after_the_pause_it_was_told(peer: Peer, sandbox: Sandbox) -> None:
    peer.refuse["exec.start"] = [Overloaded("busy", retry_after=0.2)]
    started = asyncio.get_running_loop().time()
    assert (await sandbox.run("true")).ok
    assert asyncio.get_running_loop().time() - started >= 0.2


async def test_every_other_answered_error_is_final_and_typed(peer: Peer, sandbox: Sandbox) -> None:
    peer.refuse["exec.start"] = [NoSuchProgram("no such program", field="argv")]
    with pytest.raises(NoSuchProgram) as caught:
        await sandbox.run("true")
    assert (caught.value.code, caught.value.failure, caught.value.field) == (
        "no_such_program",
        Failure.SPEC,
        "argv",
    )
    assert [verb for verb, _ in peer.ops].count("exec.start") == 1


async def test_a_wrong_spec_is_refused_before_it_is_sent_and_names_the_field(
    peer: Peer, client: Client
) -> None:
    with pytest.raises(UnknownField) as unknown:
        await client.create(image="base", limits={"swap": 1})  # type: ignore[typeddict-unknown-key]  # the point
    assert unknown.value.field == "limits.swap"
    with pytest.raises(SpecError) as missing:
        await client.create(backend="container")
    assert missing.value.field == "image"
    assert peer.ops == []


async def test_a_key_that_is_no_operation_id_is_refused(client: Client, sandbox: Sandbox) -> None:
    with pytest.raises(BadId):
        await client.create(image="base", key="not a key")
    with pytest.raises(BadId):
        await sandbox.run("true", key="a.b")
    with pytest.raises(BadId):
        await client.attach("s-a.b-abcdef")
    with pytest.raises(BadId):
        client.exec(SANDBOX, "e-*")


async def test_a_message_over_the_payload_limit_is_refused_without_sending_it(
    peer: Peer, sandbox: Sandbox
) -> None:
    before = len(peer.ops)
    with pytest.raises(TooLarge):
        await sandbox.run("true", env={"BIG": "x" * (2 << 20)})
    assert len(peer.ops) == before


async def test_a_sandbox_block_destroys_it_also_when_the_block_fails(peer: Peer, client: Client) -> None:
    with pytest.raises(Conflict):
        async with client.sandbox(image="base"):
            raise Conflict("the block's own error")
    assert peer.done["destroy"] == 1


@asynchronous
async def test_a_create_that_is_cancelled_leaves_no_sandbox(peer: Peer, client: Client) -> None:
    async def block() -> None:
        async with client.sandbox(image="base"):
            pytest.fail("cancelled before this")

    task = asyncio.create_task(block())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert peer.done["destroy"] == sum(verb == "sandbox.create" for verb, _ in peer.ops)


async def test_limits_are_told_as_applied_and_lists_are_read_page_by_page(
    client: Client, sandbox: Sandbox
) -> None:
    assert sandbox.record.applied.pids == 64
    assert (await client.attach(sandbox.id)).id == sandbox.id
    assert [record.sandbox async for record in client.list()] == [
        f"s-test-{number:08}" for number in range(5)
    ]


async def test_a_client_works_over_a_bus_that_somebody_else_opened(tmp_path: Path) -> None:
    hub = Hub()
    async with (
        peer_on(hub.bus(NODE), tmp_path),
        Client.over(hub.bus(PRINCIPAL), PROJECT, PRINCIPAL) as client,
    ):
        sandbox = await client.create(image="base")
        assert (await sandbox.run("seq 3; sleep 0.2; seq 4 5")).stdout == "1\n2\n3\n4\n5\n"


async def test_a_client_that_is_not_connected_says_so() -> None:
    with pytest.raises(BrokerDown) as caught:
        await Client("nats://127.0.0.1:1").attach(SANDBOX)
    assert "async with" in caught.value.message


async def test_a_client_without_a_platform_is_told_where_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSEC_HOME", str(tmp_path))
    monkeypatch.delenv("DSEC_URL", raising=False)
    monkeypatch.delenv("DSEC_CREDENTIALS", raising=False)
    with pytest.raises(BrokerDown) as caught:
        async with Client():
            pytest.fail("there is no platform")
    assert str(tmp_path) in caught.value.message
