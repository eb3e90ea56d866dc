"""Commands: what they print, as text and as JSON, and their exit codes."""

import os
import signal
from pathlib import Path

from dsec.sdk import Client
from tests.cli.conftest import Dsec, dsec_process
from tests.sdk.support import SANDBOX, Peer


async def test_run_streams_output_and_ends_with_the_commands_exit_code(peer: Peer, dsec: Dsec) -> None:
    done = await dsec("run", "--image", "base", "--", "sh", "-c", "echo out; exit 3")
    assert (done.code, done.out) == (3, "out\n")
    assert peer.done["destroy"] == 1


async def test_run_as_json_prints_pieces_and_the_end(dsec: Dsec) -> None:
    done = await dsec("run", "--json", "--image", "base", "--", "sh", "-c", "echo out; kill -9 $$")
    assert done.code == 128 + 9
    assert done.objects[0] == {"stream": "stdout", "text": "out\n"}
    assert (done.objects[-1]["ended"], done.objects[-1]["signal"]) == ("signal", 9)


async def test_standard_input_is_sent_when_asked_for(dsec: Dsec) -> None:
    assert (await dsec("run", "-i", "--image", "base", "--", "cat", stdin=b"hello\n")).out == "hello\n"


async def test_standard_input_may_be_a_file_or_nothing(dsec: Dsec, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"x" * 300_000)
    with (tmp_path / "input").open("rb") as file:
        assert len((await dsec("run", "-i", "--image", "base", "--", "cat", stdin=file)).out) == 300_000
    with Path("/dev/null").open("rb") as nothing:
        assert (await dsec("run", "-i", "--image", "base", "--", "cat", stdin=nothing)).out == ""


async def test_create_exec_logs_and_rm(peer: Peer, dsec: Dsec) -> None:
    created = await dsec("create", "--json", "--image", "base", "--toolkit", "t1", "--memory", "64M")
    assert created.objects[0]["sandbox"] == SANDBOX
    assert created.objects[0]["spec"]["image"]["toolkits"] == ["t1"]
    assert created.objects[0]["spec"]["limits"]["memory"] == 64 << 20
    detached = await dsec("exec", "-d", SANDBOX, "--", "sh", "-c", "echo kept; exit 4")
    logs = await dsec("logs", SANDBOX, detached.out.strip())
    assert (logs.code, logs.out) == (4, "kept\n")
    removed = await dsec("rm", SANDBOX)
    assert (removed.out.strip(), peer.done["destroy"]) == (SANDBOX, 1)


async def test_ls_and_stat_tell_sandboxes(dsec: Dsec) -> None:
    listed = await dsec("ls", "--json")
    assert [one["sandbox"] for one in listed.objects] == [f"s-test-{number:08}" for number in range(5)]
    assert "s-test-00000004" in (await dsec("ls")).out
    assert (await dsec("stat", "--json", SANDBOX)).objects[0]["applied"]["pids"] == 64
    assert ["limits", "pids", "64"] in [
        line.split() for line in (await dsec("stat", SANDBOX)).out.splitlines()
    ]


async def test_cp_goes_both_ways(peer: Peer, dsec: Dsec, tmp_path: Path) -> None:
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/sub/f").write_text("content")
    assert (await dsec("cp", str(tmp_path / "tree"), f"{SANDBOX}:/tree")).code == 0
    assert (peer.root / "tree/sub/f").read_text() == "content"
    (tmp_path / "into").mkdir()
    assert (await dsec("cp", f"{SANDBOX}:/tree", str(tmp_path / "into"))).code == 0
    assert (tmp_path / "into/tree/sub/f").read_text() == "content"


async def test_a_typed_error_is_one_line_and_exit_code_2(dsec: Dsec) -> None:
    done = await dsec("stat", "s-a.b-abcdef")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].startswith("error: bad_id: ")
    as_json = await dsec("create", "--json", "--image", "NO SUCH")
    assert as_json.code == 2
    assert '"code":"bad_request"' in as_json.err
    assert '"field":"image.base"' in as_json.err


async def test_a_failing_platform_is_told_from_a_failing_command(dsec: Dsec) -> None:
    done = await dsec("run", "--image", "NO SUCH", "--", "true")
    assert (done.code, done.out) == (125, "")
    assert (await dsec("exec", "s-a.b-abcdef", "--", "true")).code == 125


async def test_rm_destroys_the_others_when_one_is_not_there(peer: Peer, dsec: Dsec) -> None:
    done = await dsec("rm", "s-a.b-abcdef", SANDBOX)
    assert (done.code, done.out, peer.done["destroy"]) == (2, f"{SANDBOX}\n", 1)
    assert done.err.splitlines()[-1].startswith("error: bad_id: ")


async def test_a_reader_that_goes_away_ends_the_command_line_quietly(dsec: Dsec) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = await dsec("exec", SANDBOX, "--", "seq", "100000", stdout=writing)
    finally:
        os.close(writing)
    assert (done.code, done.err) == (128 + signal.SIGPIPE, "")


async def test_no_platform_is_told_at_once(tmp_path: Path) -> None:
    done = await dsec_process("ls", "--home", str(tmp_path))
    assert done.code == 2
    assert done.err.startswith("error: broker_down: ")


async def test_a_source_that_is_no_layer_is_typed(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"junk" * 1000)
    for source, code in (("junk", "bad_request"), ("missing", "no_such_file")):
        done = await dsec_process("image", "import", "--home", str(tmp_path), "x", str(tmp_path / source))
        assert (done.code, done.err.splitlines()[-1].split(": ")[1]) == (2, code)


async def test_bench_lists_its_names_and_refuses_others() -> None:
    listed = (await dsec_process("bench", "--json")).objects[-1]["benchmarks"]
    assert {"container", "exec", "stream"} <= set(listed)
    assert "measure" not in listed
    assert (await dsec_process("bench", "nothing")).err.startswith("error: bad_request: ")


async def test_doctor_tells_every_finding_and_whether_this_machine_can_be_a_node(tmp_path: Path) -> None:
    done = await dsec_process("doctor", "--json", "--home", str(tmp_path))
    (told,) = done.objects
    names = {finding["name"] for finding in told["findings"]}
    assert {
        "python",
        "nats-server",
        "chronus",
        "cgroups",
        "images erofs",
        "backend container",
        "disk",
    } <= names
    assert told["client"] is True
    assert done.code == (0 if told["node"] else 1)
    assert all(finding["detail"] for finding in told["findings"])


async def test_a_principal_is_made_with_private_credentials(tmp_path: Path) -> None:
    made = await dsec_process(
        "principal", "add", "--offline", "--json", "--home", str(tmp_path), "--project", "p-x", "u-x"
    )
    path = Path(made.objects[0]["credentials"])
    assert path.stat().st_mode & 0o777 == 0o600
    again = await dsec_process(
        "principal", "add", "--offline", "--home", str(tmp_path), "--project", "p-x", "u-x"
    )
    assert again.err.startswith("error: conflict: ")


def test_the_client_is_what_is_exported() -> None:
    import dsec  # noqa: PLC0415 - the name of a fixture here

    assert dsec.Client is Client
