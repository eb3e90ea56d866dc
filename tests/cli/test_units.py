"""The pure parts of the command line."""

import argparse

import pytest

from dsec.bus.errors import SpecError
from dsec.bus.messages import Ended
from dsec.sdk import Result
from dsec.sdk.cli import COMMANDS, conformance, doctor, options, parser
from dsec.sdk.cli.following import exit_code
from dsec.sdk.cli.output import size, table


def result(ended: Ended, code: int | None = None, signal: int | None = None) -> Result:
    return Result("e-x", 0, ended, code, signal, b"", b"", False, 0, 0, 0)


@pytest.mark.parametrize(
    ("ended", "code", "signal", "expected"),
    [
        (Ended.EXIT, 0, None, 0),
        (Ended.EXIT, 7, None, 7),
        (Ended.SIGNAL, None, 15, 143),
        (Ended.TIMEOUT, None, 9, 124),
        (Ended.OOM, None, 9, 137),
    ],
)
def test_exit_codes_are_those_a_shell_tells(
    ended: Ended, code: int | None, signal: int | None, expected: int
) -> None:
    assert exit_code(result(ended, code, signal)) == expected


@pytest.mark.parametrize(("text", "count"), [("5", 5), ("4K", 4096), ("1.5m", 3 << 19), ("2G", 2 << 30)])
def test_amounts_have_units(text: str, count: int) -> None:
    assert options.amount(text) == count


def test_sizes_are_shown_for_people() -> None:
    assert [size(count) for count in (5, 1536, 3 << 20, 5 << 40)] == [
        "5 B",
        "1.5 KiB",
        "3.0 MiB",
        "5120.0 GiB",
    ]


def test_a_table_in_a_file_is_not_cut_to_the_width_of_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table(("a", "b"), [("x" * 200, "y[z]")])
    assert capsys.readouterr().out.splitlines()[1].split() == ["x" * 200, "y[z]"]


def test_a_pair_without_a_name_is_refused_by_its_option() -> None:
    assert options.pairs(["A=b=c"], "env") == {"A": "b=c"}
    with pytest.raises(SpecError) as caught:
        options.pairs(["novalue"], "env")
    assert caught.value.field == "env"


def test_every_command_has_a_handler_and_json() -> None:
    for name in COMMANDS:
        assert parser([name]).format_help()
    args = parser(["exec"]).parse_args(["exec", "s-a-bcde", "--json", "--", "ls", "--all", "-x"])
    assert (args.command, args.json) == (["ls", "--all", "-x"], True)


def test_a_machine_is_a_node_only_with_a_backend() -> None:
    found = [doctor.Finding("python", "client", True, ""), doctor.Finding("backend x", "option", False, "")]
    assert doctor.able_of(found) == {"client": True, "node": False}
    found.append(doctor.Finding("backend y", "option", True, ""))
    assert doctor.able_of(found) == {"client": True, "node": True}
    found.append(doctor.Finding("disk", "node", False, ""))
    assert doctor.able_of(found) == {"client": True, "node": False}


def test_conformance_runs_the_suite_with_the_driver_and_counts() -> None:
    args = argparse.Namespace(driver="sim", base_image=None, own_process=True, pytest=["-x"])
    argv = conformance.argv(args)
    assert "--own-process" in argv
    assert argv[argv.index("--driver") + 1] == "sim"
    assert argv[-1] == "dsec.sdk.testing.conformance"
    assert conformance.counts("...\n2 failed, 31 passed, 1 error in 3.0s\n") == {
        "failed": 2,
        "passed": 31,
        "error": 1,
    }
