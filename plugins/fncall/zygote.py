"""What a warm worker executes inside: imports libraries once, then forks a child for each call.

The node hands over the text of this file; it imports nothing of dsec and runs on the image's own Python (3.9
on). Descriptor 3 is a SEQPACKET socket. For each call comes a JSON header with descriptors, in this order:
namespaces of the call's box (user, cgroup, ipc, uts, net, mnt, pid), files of its cgroups, standard input,
output and error, where the result goes, and the call itself. Told back: `ready`, or why not; how each child
ended.

The child joins the box, gives up every right and every descriptor, and only then reads the call: nothing of
one call is ever in this process's memory. Its pid namespace is chosen before the fork, as the kernel wants
it.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import importlib
import json
import linecache
import os
import resource
import select
import signal
import socket
import struct
import sys
import traceback
import types
from typing import Any, NoReturn

USER = 1000
NAMESPACES = 7
PR_SET_DUMPABLE = 4
CLONE_NEWPID = 0x20000000
CAPABILITIES = struct.pack("II", 0x20080522, 0)
LIBC = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def join(namespaces: list[int], cgroups: list[int]) -> None:
    """Into the box; afterwards this process has no right over anything."""
    for group in cgroups:
        os.write(group, b"0")
    for namespace in namespaces:
        check(LIBC.setns(namespace, 0), "setns")
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    check(LIBC.capset(CAPABILITIES, bytes(24)), "capset")
    check(LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")
    os.setsid()
    os.umask(0o022)
    os.chdir("/tmp/work")  # noqa: S108 - inside the box, where it is private


def limit(header: dict[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (header["nofile"], header["nofile"]))
    if header["cpu"]:
        resource.setrlimit(resource.RLIMIT_CPU, (header["cpu"], header["cpu"] + 1))


def prepare_streams() -> None:
    """Standard streams on pipes: a child only exchanges what is behind the descriptors, which is much cheaper
    than to make them. Nothing is read or written before that.
    """
    for number, end in enumerate((*os.pipe(), os.pipe()[1])):
        os.dup2(end, number)
        os.close(end)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))


def read_all(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0)


def be_call(header: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], int]:
    """The child: returns the call, and the descriptor for its result."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *namespaces, _ = fds[:NAMESPACES]
    *cgroups, first, second, third, result, call = fds[NAMESPACES:]
    join(namespaces, cgroups)
    for number, given in enumerate((first, second, third)):
        os.dup2(given, number)
    body = read_all(call)
    os.dup2(result, 4)
    os.dup2(4, 3)  # whatever number it had: 3 is the socket, which ends here
    os.closerange(4, 1 << 20)
    limit(header)
    gc.enable()
    call = json.loads(body)
    os.environ.update(call["env"])
    return call, 3


def source_of(call: dict[str, Any], name: str) -> tuple[Any, Any]:
    """The module of the call, not yet executed; its source is told in tracebacks."""
    text, file = call["source"], call.get("file", "call.py")
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = types.ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    return module, compile(text, file, "exec", dont_inherit=True)


def invoke(call: dict[str, Any]) -> str:
    """What the call's function returns; a coroutine is run to its end."""
    module, code = source_of(call, "call")
    exec(code, module.__dict__)  # noqa: S102 - what this is for
    value = getattr(module, call["entry"])(*call["args"], **call["kwargs"])
    if hasattr(value, "__await__"):
        asyncio = importlib.import_module("asyncio")  # large, and seldom wanted

        async def awaited() -> Any:
            return await value

        value = asyncio.run(awaited())
    return json.dumps({"value": value}, allow_nan=True)


def raised(error: BaseException) -> dict[str, str]:
    shown = traceback.TracebackException.from_exception(error, limit=-20)
    while shown.stack and shown.stack[0].filename == "<string>":  # of this file
        del shown.stack[0]
    text = "".join(shown.format())[-16384:]
    return {"type": type(error).__name__, "message": str(error)[:4096], "traceback": text}


def function(call: dict[str, Any], result: int) -> int:
    """Call a function; the exit code. The result is written at the very end."""
    code = 0
    try:
        told = invoke(call)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
        if isinstance(error, SystemExit) and not isinstance(error.code, str):
            code = 0 if error.code is None else error.code & 255
        else:
            code = 1
        told = json.dumps({"error": raised(error)})
    data = told.encode("utf-8", "surrogatepass")
    while data:
        data = data[os.write(result, data) :]
    return code


def program(call: dict[str, Any], result: int) -> int:
    """Run the source as `python3 FILE ARGUMENTS` would; the exit code."""
    os.close(result)
    try:
        module, code = source_of(call, "__main__")
        sys.argv = [call.get("file", "call.py"), *call["argv"]]
        exec(code, module.__dict__)  # noqa: S102
    except SystemExit as error:
        if isinstance(error.code, int) or error.code is None:
            return (error.code or 0) & 255
        sys.stderr.write(f"{error.code}\n")
        return 1
    except BaseException as error:  # noqa: BLE001
        sys.stderr.write(raised(error)["traceback"])
        return 1
    return 0


def finish(code: int) -> NoReturn:
    """As the interpreter ends: other threads, then atexit, then what is buffered."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001
        code = code or 120
    os._exit(code)


def serve_call(control: socket.socket, header: dict[str, Any], fds: list[int]) -> int:
    """Fork; the child never returns."""
    check(LIBC.setns(fds[NAMESPACES - 1], CLONE_NEWPID), "setns")
    pid = os.fork()
    if pid:
        return pid
    try:
        call, result = be_call(header, fds)
    except BaseException as error:  # noqa: BLE001
        control.send(json.dumps({"id": header["id"], "failed": str(error)[:1000]}).encode())
        os._exit(1)
    finish((function if call["entry"] else program)(call, result))


def receive(control: socket.socket) -> tuple[bytes, list[int]]:
    data, ancillary, _, _ = control.recvmsg(65536, socket.CMSG_SPACE(32 * 4), socket.MSG_CMSG_CLOEXEC)
    fds: array.array[int] = array.array("i")
    for _, _, part in ancillary:
        fds.frombytes(part[: len(part) - len(part) % fds.itemsize])
    return data, fds.tolist()


def begin(control: socket.socket, running: dict[int, int]) -> None:
    data, fds = receive(control)
    if not data:
        os._exit(0)
    header = json.loads(data)
    try:
        running[serve_call(control, header, fds)] = header["id"]
    except OSError as error:
        control.send(json.dumps({"id": header["id"], "failed": str(error)}).encode())
    finally:
        for descriptor in fds:
            os.close(descriptor)


def reap(control: socket.socket, running: dict[int, int]) -> None:
    while running:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if not pid:
            return
        cpu = usage.ru_utime + usage.ru_stime
        control.send(json.dumps({"id": running.pop(pid), "status": status, "cpu": cpu}).encode())


def rehearse() -> None:
    """What every call does, once: what it makes the interpreter set up is then not set up by each child."""
    call = {"source": "def f(x):\n    return x\n", "entry": "f", "args": [1], "kwargs": {}}
    invoke(json.loads(json.dumps(call)))
    try:
        invoke({**call, "source": "def f(x):\n    raise ValueError\n"})
    except ValueError as error:
        raised(error)
    del sys.modules["call"]
    linecache.clearcache()


def warm(names: list[str]) -> None:
    for name in names:
        importlib.import_module(name)
    rehearse()
    prepare_streams()
    gc.collect()
    gc.disable()
    gc.freeze()


def main() -> None:
    control = socket.socket(fileno=3)
    try:
        warm(sys.argv[1:])
    except BaseException as error:  # noqa: BLE001
        control.send(json.dumps({"broken": raised(error)}).encode())
        os._exit(1)
    woken, wake = socket.socketpair()
    wake.settimeout(0)
    woken.settimeout(0)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    control.send(json.dumps({"ready": sys.version.split()[0]}).encode())
    poll = select.poll()
    running: dict[int, int] = {}  # pid -> number of the call
    for one in (control, woken):
        poll.register(one, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if woken.fileno() in ready:
            woken.recv(4096)
            reap(control, running)
        if control.fileno() in ready:
            begin(control, running)


if __name__ == "__main__":
    main()
