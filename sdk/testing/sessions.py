"""Sessions: what a shell keeps, what each command gets exactly, and how sessions end."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from signal import Signals

import pytest
import pytest_asyncio

from dsec.bus.errors import NoSuchExec, NoSuchProgram, SessionBusy, SessionEnded, SpecError
from dsec.bus.messages import Ended
from dsec.sdk import Sandbox, Session
from dsec.sdk.testing import pace

KEPT = [
    ("cd /usr/lib", "pwd", "/usr/lib\n"),
    ("export A='x  y'", "sh -c 'echo \"$A\"'", "x  y\n"),
    ("b=1; declare -a c=(p q r)", "echo $b ${c[@]}", "1 p q r\n"),
    ("f() { echo in f $1; }", "f 7", "in f 7\n"),
    ("shopt -s extglob; set -o noglob", "echo * @(a|b)", "* @(a|b)\n"),
    ("umask 027", "umask", "0027\n"),
    ("exec 7>/tmp/kept 11>/tmp/other; echo one >&7; echo two >&11", "cat /tmp/kept /tmp/other", "one\ntwo\n"),
    ("sleep 60 & P=$!", "kill -0 $P && kill $P && echo alive", "alive\n"),
    ("trap 'echo caught' USR1", "kill -USR1 $$", "caught\n"),
]
HARMLESS = [
    ("echo 'open", 2),
    ("if true; then", 2),
    ("break", 0),
    ("no-such-command", 127),
    ("cd /no/such", 1),
    ("(exit 9)", 9),
    ("false | true", 0),
    ("! true", 1),
    ("eval() { :; }; printf() { :; }; read() { :; }; command() { :; }", 0),
    ("set -u; set -o pipefail; set -f", 0),
    ("echo $((1/0))", 1),
    ("ulimit -c 0", 0),
    ("}", 2),
    ("alias builtin=false command=false eval=false; shopt -s expand_aliases", 0),
    ("trap 'echo bye' EXIT", 0),
    ("cat <<X\nX", 0),
]
ENDING = [
    ("exit 3", 3, None),
    ("kill -9 $$", None, 9),
    ("exec sh -c 'echo last; exit 5'", 5, None),
    ("set -e; false; echo never", 1, None),
    ("echo ${nothing:?is missing}; echo never", 1, None),
]


@pytest_asyncio.fixture(loop_scope="session")
async def sh(sandbox: Sandbox) -> AsyncIterator[Session]:
    """An open session."""
    async with sandbox.session() as opened:
        yield opened


async def said(sh: Session, command: str) -> str:
    """What it prints; it must succeed and keep standard error clean."""
    result = await sh.run(command)
    assert (result.ended, result.code, result.stderr) == (Ended.EXIT, 0, "")
    return result.stdout


class SessionSuite:
    @pytest.mark.parametrize(("first", "then", "expected"), KEPT)
    async def test_a_session_keeps_what_a_command_changed(
        self, sandbox: Sandbox, first: str, then: str, expected: str
    ) -> None:
        async with sandbox.session() as sh:
            assert (await sh.run(first)).code == 0
            assert (await sh.run(then)).stdout == expected

    async def test_output_and_exit_codes_are_exact_and_apart(self, sh: Session) -> None:
        for code in (0, 1, 2, 127, 255):
            result = await sh.run(f"echo out {code}; echo err {code} >&2; (exit {code})")
            assert (result.code, result.stdout, result.stderr) == (code, f"out {code}\n", f"err {code}\n")

    async def test_no_command_spoils_those_after_it(self, sandbox: Sandbox) -> None:
        for command, code in HARMLESS:
            async with sandbox.session() as sh:
                assert (await sh.run(command)).code == code, command
                assert (await sh.run("echo still here; sh -c 'exit 4'")).stdout == "still here\n", command
                assert (await sh.run("(exit 4)")).code == 4, command

    @pytest.mark.parametrize(("command", "code", "signal"), ENDING)
    async def test_case_7_an_ended_session_is_typed(
        self, sandbox: Sandbox, command: str, code: int | None, signal: int | None
    ) -> None:
        async with sandbox.session() as sh:
            result = await sh.run(f"echo before; {command}")
            assert (result.code, result.signal) == (code, signal)
            assert result.stdout in {"before\n", "before\nlast\n"}
            for _ in range(2):
                with pytest.raises(SessionEnded) as ended:
                    await sh.run("echo accepted")
                assert (ended.value.exit_code, ended.value.signal) == (code, signal)
            how = await sh.wait()
            assert (how.code, how.signal) == (code, signal)

    async def test_case_13_any_bytes_come_through(self, sh: Session) -> None:
        assert (await sh.run(r"printf '\x96\xff\x00ok'")).stdout_bytes == b"\x96\xff\x00ok"
        assert await said(sh, "printf '\\303\\244'; echo ä | wc -c") == "ä3\n"

    @pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 3_000_001])
    async def test_long_output_is_complete_and_nobody_elses(self, sh: Session, size: int) -> None:
        long = await sh.run(f"head -c {size} /dev/zero | tr '\\0' a; printf END; printf err >&2")
        assert (long.stdout_bytes, long.stderr) == (b"a" * size + b"END", "err")
        assert await said(sh, "echo next") == "next\n"

    async def test_output_past_the_quota_is_dropped_and_the_next_is_whole(self, sh: Session) -> None:
        short = await sh.run("head -c 5000 /dev/zero | tr '\\0' a", log_bytes=1024)
        assert (short.stdout, short.truncated) == ("a" * 1024, True)
        long = await sh.run("head -c 5000000 /dev/zero | tr '\\0' a", log_bytes=100_000)
        assert (long.stdout, long.truncated) == ("a" * 100_000, True)
        assert await said(sh, "echo next") == "next\n"

    async def test_each_command_has_its_own_stdin(self, sh: Session) -> None:
        assert await said(sh, "cat; read x || echo none") == "none\n"
        assert (await sh.run("read x; echo got:$x; cat", stdin=b"one\ntwo\0\n")).stdout == "got:one\ntwo\0\n"
        assert await said(sh, "cat; echo $x") == "one\n"
        data = bytes(range(256)) * 1024
        result = await sh.run("sha256sum", stdin=data)
        assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()

    async def test_a_command_of_a_megabyte_is_run(self, sh: Session) -> None:
        assert await said(sh, f"x='{'y' * 900_000}'; echo ${{#x}}") == "900000\n"
        with pytest.raises(SpecError) as refused:
            await sh.run("echo \0")
        assert refused.value.field == "argv"
        assert await said(sh, "echo ${#x}") == "900000\n"

    async def test_the_platform_is_not_to_be_seen(self, sh: Session) -> None:
        listed = await said(sh, "ls -l /proc/self/fd; jobs; set | grep -i dsec || :")
        assert "pipe" not in "\n".join(line for line in listed.splitlines() if " 25" in line)
        assert (await sh.run("no-such-command")).stderr.endswith("no-such-command: command not found\n")

    @pytest.mark.parametrize("command", ["exec 250>&-", "builtin() { :; }"])
    async def test_a_shell_that_cannot_tell_any_more_is_ended(self, sh: Session, command: str) -> None:
        started = time.monotonic()
        await sh.run(command)
        with pytest.raises(SessionEnded):
            await sh.run("echo accepted")
        assert time.monotonic() - started < pace.within(10)

    async def test_what_closes_the_shells_own_output_is_its_own_affair(self, sh: Session) -> None:
        await sh.run("exec >&-; exec 2>&-")
        assert (await sh.run("echo lost")).code == 1
        await sh.run("exec >/tmp/out 2>&1")
        assert (await sh.run("echo kept")).stdout == ""
        assert (await sh.run("(exit 6)")).code == 6

    async def test_background_jobs_hold_up_nothing_and_write_to_whoever_runs(self, sh: Session) -> None:
        started = time.monotonic()
        assert await said(sh, f"(sleep {pace.within(3)}; echo late) & echo done") == "done\n"
        assert time.monotonic() - started < pace.within(2.9)
        assert await said(sh, "wait; echo all") == "late\nall\n"

    async def test_a_timeout_ends_the_command_and_not_the_session(self, sh: Session) -> None:
        await sh.run("A=1; sleep 100 & P=$!")
        result = await sh.run("echo early; sleep 100; echo late", timeout=0.5)
        assert (result.ended, result.stdout) == (Ended.TIMEOUT, "early\n")
        assert await said(sh, "kill -0 $P; echo $A") == "1\n"

    async def test_a_timeout_of_a_shell_that_does_not_come_back_ends_the_session(self, sh: Session) -> None:
        assert (await sh.run("while :; do :; done", timeout=0.3)).ended is Ended.TIMEOUT
        with pytest.raises(SessionEnded) as ended:
            await sh.run("true")
        assert ended.value.signal == Signals.SIGKILL

    async def test_a_signal_goes_to_the_command(self, sh: Session) -> None:
        running = await sh.start("sleep 100")
        with pytest.raises(SessionBusy):
            await sh.start("true")
        await running.signal(Signals.SIGTERM)
        assert (await running.wait()).code == 128 + Signals.SIGTERM
        assert await said(sh, "echo on") == "on\n"

    async def test_a_signal_waits_for_a_process_that_the_shell_has_not_begun(
        self, sandbox: Sandbox, sh: Session
    ) -> None:
        await sh.run("mkfifo /tmp/go")
        running = await sh.start("read line </tmp/go; sleep 100")
        signalling = asyncio.create_task(running.signal(Signals.SIGTERM))
        await asyncio.sleep(0.3)
        assert not signalling.done()
        await sandbox.run("echo go >/tmp/go")
        await signalling
        assert (await running.wait()).code == 128 + Signals.SIGTERM

    async def test_output_is_streamed_while_the_command_runs(self, sandbox: Sandbox, sh: Session) -> None:
        await sh.run("mkfifo /tmp/go")
        running = await sh.start("echo first; cat /tmp/go; echo last")
        assert await anext(running) == b"first\n"
        await sandbox.run("echo second >/tmp/go")
        assert (await running.wait()).stdout == "second\nlast\n"

    async def test_a_repeated_key_runs_once(self, sandbox: Sandbox, sh: Session) -> None:
        await sh.run("n=0")
        first = await sh.run("n=$((n+1)); echo $n", key="once-1")
        again = await sh.run("n=$((n+1)); echo $n", key="once-1")
        assert (first.stdout, again.stdout, first.exec) == ("1\n", "1\n", again.exec)
        assert await said(sh, "echo $n") == "1\n"

    async def test_a_session_is_reached_by_its_id_from_elsewhere(self, sandbox: Sandbox, sh: Session) -> None:
        await sh.run("A=7")
        assert await said(sandbox.session_of(sh.id), "echo $A") == "7\n"

    async def test_cwd_env_user_and_shell_hold(self, sandbox: Sandbox) -> None:
        async with sandbox.session(cwd="/tmp", env={"A": "x y"}, user="nobody") as sh:
            told = await said(sh, 'pwd; echo "$A"; id -u; echo ${BASH_VERSION:+bash}')
            assert told.split("\n") == ["/tmp", "x y", "65534", "bash", ""]
        async with sandbox.session("sh") as sh:
            assert (await sh.run("cd /usr; echo $0; echo err >&2; (exit 3)")).code == 3
            assert await said(sh, "pwd; echo ${BASH_VERSION:-sh}") == "/usr\nsh\n"
        for wrong in (
            sandbox.session(user="nobody-here"),
            sandbox.session(cwd="/no/such"),
            sandbox.session("/no/such/shell"),
        ):
            with pytest.raises(NoSuchProgram):
                await wrong.open()

    async def test_what_is_no_session_is_typed(self, sandbox: Sandbox) -> None:
        done = await sandbox.run(["true"])
        with pytest.raises(SpecError):
            await sandbox.session_of(done.exec).run("true")
        with pytest.raises(NoSuchExec):
            await sandbox.session_of("e-neverwas").run("true")

    async def test_a_closed_session_leaves_no_process(self, sandbox: Sandbox) -> None:
        before = await processes(sandbox)
        async with sandbox.session() as sh:
            await sh.run("sleep 100 & setsid sleep 100 & (trap '' HUP TERM; sleep 100) &")
        assert await processes(sandbox) == before
        with pytest.raises(SessionEnded):
            await sh.run("true")

    async def test_many_sessions_at_once_do_not_mix(self, sandbox: Sandbox) -> None:
        async def talk(number: int) -> None:
            async with sandbox.session() as sh:
                await sh.run(f"N={number}; cd /tmp")
                for turn in range(3):
                    assert await said(sh, f"echo $N {turn}") == f"{number} {turn}\n"

        await asyncio.gather(*(talk(number) for number in range(20)))


async def processes(sandbox: Sandbox) -> int:
    """How many processes the sandbox has."""
    listed = await sandbox.run(["/bin/ls", "/proc"])
    return len([name for name in listed.stdout.split() if name.isdigit()])
