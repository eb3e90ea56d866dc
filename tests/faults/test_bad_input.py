"""Bad input on the command line: exit code 2, one line that names what is wrong, and nothing left."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import socket
import tarfile
from pathlib import Path

import pytest

from dsec.bus.nats import broker
from dsec.bus.nats.credentials import Credentials, Role
from dsec.sdk.cli import main
from dsec.sdk.testing.traces import paths
from tests.cli.conftest import Outcome

ENDS = 2
FILES = {
    "garbage.erofs": bytes(range(256)) * 80,
    "empty": b"",
    "cut.erofs": bytes(1024) + b"\xe2\xe1\xf5\xe0" + bytes(8000),
}


def dsec(*argv: str) -> Outcome:
    """`dsec ARGV…` in this process: what is on trial is its last line and its code."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(argv))
    return Outcome(code, out.getvalue(), err.getvalue())


def refused(done: Outcome, code: str, word: str = "") -> None:
    """It ended with the typed error `code` on one line that has `word`."""
    assert done.code == ENDS
    assert done.out == ""
    (line,) = done.err.splitlines()
    assert line.startswith(f"error: {code}: ")
    assert word in line


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small tar archive of two files."""
    directory = tmp_path_factory.mktemp("archive")
    for name in ("a", "b"):
        (directory / name).write_bytes(name.encode() * 3000)
    with tarfile.open(directory / "whole.tar", "w") as tar:
        for name in ("a", "b"):
            tar.add(directory / name, name)
    return (directory / "whole.tar").read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_image_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    refused(_import(tmp_path, "layer", tmp_path / name), "bad_request", name)
    assert _layers(tmp_path) == []


@pytest.mark.parametrize("end", [700, 2000, 512 + 3072 + 100, 512 + 3072 + 512 + 3072])
def test_a_truncated_archive_is_refused_wherever_it_ends(tmp_path: Path, archive: bytes, end: int) -> None:
    (tmp_path / "cut.tar").write_bytes(archive[:end])
    refused(_import(tmp_path, "layer", tmp_path / "cut.tar"), "bad_request")
    assert _layers(tmp_path) == []


@pytest.mark.parametrize("kept", [20, 0.5, 0.95])
def test_a_truncated_compressed_archive_is_refused(tmp_path: Path, archive: bytes, kept: float) -> None:
    whole = gzip.compress(archive)
    (tmp_path / "cut.tgz").write_bytes(whole[: int(kept * len(whole)) if kept < 1 else int(kept)])
    refused(_import(tmp_path, "layer", tmp_path / "cut.tgz"), "bad_request", "cut.tgz")
    assert _layers(tmp_path) == []


@pytest.mark.parametrize("name", ["a/b", "../a", "A", "", "a b", ".hidden"])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "tree").mkdir()
    refused(_import(tmp_path, name, tmp_path / "tree"), "bad_request", "layer name")
    assert not (tmp_path.parent / "a").exists()


def test_a_source_that_is_not_there_is_told(tmp_path: Path) -> None:
    refused(_import(tmp_path, "layer", tmp_path / "nothing"), "no_such_file", "nothing")


def test_errors_are_objects_with_json(tmp_path: Path) -> None:
    done = dsec("image", "import", "--json", "--home", str(tmp_path), "a/b", str(tmp_path))
    assert (done.code, done.out) == (ENDS, "")
    error = json.loads(done.err)["error"]
    assert (error["code"], error["field"]) == ("bad_request", "name")


@pytest.mark.parametrize(
    "argv", [("ls",), ("exec", "s-a-b", "--", "true"), ("stat", "s-a-b"), ("rm", "s-a-b")]
)
def test_a_home_where_nothing_runs_is_told(tmp_path: Path, argv: tuple[str, ...]) -> None:
    done = dsec(argv[0], "--home", str(tmp_path), *argv[1:])
    assert done.code != 0
    assert done.err.splitlines()[-1].startswith("error: broker_down: ")
    assert "dsec up" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"role": "king"}', '{"role": "tenant", "x": 1}', "\x00"]
)
def test_a_damaged_credentials_file_is_told(tmp_path: Path, text: str) -> None:
    who = tmp_path / "who.json"
    who.write_text(text)
    who.chmod(0o600)
    refused(_ls(who), "unauthenticated", "who.json")


def test_a_credentials_file_that_others_can_read_is_told(tmp_path: Path) -> None:
    who = tmp_path / "who.json"
    Credentials.new(Role.TENANT, project="p-a", principal="u-a").save(who)
    who.chmod(0o644)
    refused(_ls(who), "unauthenticated", "chmod 600")


def test_a_port_that_is_taken_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "PORT_WAIT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = dsec("up", "--home", str(tmp_path), "--only", "control", "--port", port)
    refused(done, "broker_down", f"port {port} is taken")


@pytest.mark.parametrize("port", ["65536", "-1"])
def test_a_port_that_is_none_is_refused(tmp_path: Path, port: str) -> None:
    done = dsec("up", "--home", str(tmp_path), "--only", "control", "--port", port)
    refused(done, "bad_request", port)


def test_a_home_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(dsec("image", "ls", "--home", str(tmp_path / "file")), "infra", "file")


def _import(home: Path, name: str, source: Path) -> Outcome:
    return dsec("image", "import", "--home", str(home / "home"), name, str(source))


def _ls(who: Path) -> Outcome:
    return dsec("ls", "--url", "nats://127.0.0.1:1", "--credentials", str(who))


def _layers(home: Path) -> list[str]:
    return [Path(path).name for path in paths(home / "home") if Path(path).is_file()]
