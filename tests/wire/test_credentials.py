"""Credential files."""

import stat
from pathlib import Path

import pytest

from dsec.bus.errors import Unauthenticated
from dsec.bus.nats.credentials import Credentials, Role


def test_saved_credentials_are_private_and_load_again(tmp_path: Path) -> None:
    saved = Credentials.new(Role.TENANT, project="p-lab", principal="u-ann")
    saved.save(tmp_path / "deep" / "ann.json")
    assert stat.S_IMODE((tmp_path / "deep" / "ann.json").stat().st_mode) == 0o600
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["ann.json"]
    assert Credentials.load(tmp_path / "deep" / "ann.json") == saved


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o606])
def test_a_file_that_others_can_reach_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "core.json"
    Credentials.new(Role.CORE).save(path)
    path.chmod(mode)
    with pytest.raises(Unauthenticated, match=f"chmod 600 {path}"):
        Credentials.load(path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"role": "god", "seed": ""}', '{"role": "core", "x": 1}'])
def test_what_is_not_credentials_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(Unauthenticated, match=str(path)):
        Credentials.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unauthenticated, match="no credentials at"):
        Credentials.load(tmp_path / "none.json")


def test_a_broken_seed_is_refused() -> None:
    with pytest.raises(Unauthenticated, match="seed"):
        Credentials(Role.CORE, "SUAgarbage").public  # noqa: B018 - the property raises


def test_the_secret_does_not_show_in_a_log_line() -> None:
    credentials = Credentials.new(Role.CORE)
    assert credentials.seed not in repr(credentials)


def test_inboxes_are_named_by_principal_node_or_role() -> None:
    tenant = Credentials.new(Role.TENANT, project="p-lab", principal="u-ann")
    assert tenant.inbox == "_INBOX.u-ann"
    assert Credentials.new(Role.EDGE, node="n-a").inbox == "_INBOX.n-a"
    assert Credentials.new(Role.SCHEDULER).inbox == "_INBOX.scheduler"
