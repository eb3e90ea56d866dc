"""A peer that speaks the platform's protocol, to test the client's side of it: real broker, real frames.

It runs commands on this machine and keeps their logs in memory; it can lose answers and live frames on
purpose. What a sandbox is and what a node does is tested elsewhere, with real ones.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsec.bus import subjects
from dsec.bus.errors import DsecError, NoSuchExec, NoSuchFile
from dsec.bus.frames import FRAME_BYTES, Frame, Kind, pack_data, pack_frames, pack_parts, unpack_data
from dsec.bus.handlers import Call, failed, ok, serving
from dsec.bus.ids import exec_of
from dsec.bus.messages import FileInfo, Record, State
from dsec.bus.nats.broker import Broker
from dsec.bus.nats.credentials import Credentials, Role
from dsec.bus.nats.wire import Wire
from dsec.bus.spec import Limits, parse_spec
from dsec.bus.transport import Bus
from dsec.sdk import Client

PROJECT, PRINCIPAL, NODE = "p-test", "u-test", "n-test"
SANDBOX = "s-test-abcdefgh"
INLINE_SECONDS = 0.05


@dataclass
class Log:
    """One exec on the peer."""

    frames: list[Frame] = field(default_factory=list)
    offset: int = 0
    credit: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    process: asyncio.subprocess.Process | None = None
    ended: bool = False
    first: bytes = b""

    def add(self, kind: Kind, data: bytes) -> Frame:
        frame = Frame(kind, len(self.frames), self.offset, 7, data)
        self.frames.append(frame)
        self.offset += frame.output
        return frame


@dataclass
class Peer:
    """`lose_answers`: verb -> how many answers are dropped after the work was done. `live`: which frames go
    out live. `forget`: answer NoSuchExec for execs that have ended.
    """

    bus: Bus
    root: Path
    logs: dict[str, Log] = field(default_factory=dict)
    ops: list[tuple[str, str]] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    lose_answers: Counter[str] = field(default_factory=Counter)
    refuse: dict[str, list[DsecError]] = field(default_factory=dict)
    live: Callable[[Frame], bool] = lambda frame: True
    forget: bool = True
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    # -- the log

    def publish(self, exec_id: str, frame: Frame) -> None:
        if self.live(frame):
            subject = subjects.exec_stream(PROJECT, SANDBOX, exec_id)
            self.spawn(self.bus.publish(subject, frame.pack()))

    def spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    # -- requests

    async def handle(self, call: Call) -> bytes | None:
        verb = f"{call.address.noun}.{call.address.verb}"
        raw = verb == "file.write"
        body = json.loads(unpack_data(call.data)[0] if raw else call.data)
        self.ops.append((verb, body["op"]))
        try:
            if self.refuse.get(verb):
                raise self.refuse[verb].pop(0)
            answer = await getattr(self, verb.replace(".", "_"))(call, body)
        except DsecError as error:
            answer = failed(error)
        if self.lose_answers[verb] > 0:
            self.lose_answers[verb] -= 1
            return None
        return bytes(answer)

    def record(self, spec: dict[str, Any], sandbox: str = SANDBOX) -> Record:
        return Record(
            sandbox=sandbox,
            project=PROJECT,
            principal=PRINCIPAL,
            node=NODE,
            epoch=1,
            state=State.RUNNING,
            spec=parse_spec(spec),
            applied=Limits(pids=64),
            created=0,
            expires=int(time.time() * 1000) + 60_000,
        )

    async def sandbox_create(self, call: Call, body: dict[str, Any]) -> bytes:
        self.done[body["op"]] += 1
        return ok(self.record(body["spec"]))

    async def sandbox_stat(self, call: Call, body: dict[str, Any]) -> bytes:
        return ok(self.record({"image": "base"}))

    async def sandbox_destroy(self, call: Call, body: dict[str, Any]) -> bytes:
        self.done["destroy"] += 1
        return ok()

    async def sandbox_list(self, call: Call, body: dict[str, Any]) -> bytes:
        names = [f"s-test-{number:08}" for number in range(5)]
        start, stop = body["cursor"], body["cursor"] + 2
        page = [self.record({"image": "base"}, name).model_dump(mode="json") for name in names[start:stop]]
        return ok({"sandboxes": page, "more": stop < len(names), "cursor": stop})

    async def exec_start(self, call: Call, body: dict[str, Any]) -> bytes:
        exec_id = exec_of(body["op"])
        log = self.logs.get(exec_id)
        if log is None:
            self.done[exec_id] += 1
            log = self.logs[exec_id] = Log()
            log.first = await self._begin(exec_id, log, body)
        elif log.ended and self.forget:
            raise NoSuchExec("ended and forgotten", field="exec")
        return log.first

    async def _begin(self, exec_id: str, log: Log, body: dict[str, Any]) -> bytes:
        log.process = process = await asyncio.create_subprocess_exec(
            *body["argv"],
            stdin=asyncio.subprocess.PIPE
            if "stdin" in body or body.get("stdin_open")
            else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self.root,
            start_new_session=True,
        )
        if "stdin" in body and process.stdin is not None:
            process.stdin.write(base64.b64decode(body["stdin"]))
            process.stdin.close()
        assert process.stdout is not None
        head = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(INLINE_SECONDS):
                while len(head) <= FRAME_BYTES and (piece := await process.stdout.read(FRAME_BYTES)):
                    head += piece
                await process.wait()
        if process.returncode is not None and len(head) <= FRAME_BYTES:
            log.ended = True
            return log.add(Kind.INLINE, pack_parts(self._end(process), head, b"")).pack()
        frame = log.add(Kind.STARTED, pack_parts(b"{}", head, b""))
        self.spawn(self._pump(exec_id, log))
        return frame.pack()

    def _end(self, process: asyncio.subprocess.Process) -> bytes:
        code = process.returncode or 0
        end = {"ended": "exit" if code >= 0 else "signal", "wall_ms": 1.0, "cpu_ms": 1.0, "max_rss": 4096}
        end |= {"code": code} if code >= 0 else {"signal": -code}
        return json.dumps({**end, "output_bytes": 0}).encode()

    async def _pump(self, exec_id: str, log: Log) -> None:
        """Frames go out as credit allows; the pipe is read no further, as a node does."""
        process = log.process
        assert process is not None
        assert process.stdout is not None
        while True:
            while log.credit <= log.offset:
                log.changed.clear()
                await log.changed.wait()
            data = await process.stdout.read(min(FRAME_BYTES, log.credit - log.offset))
            if not data:
                break
            self.publish(exec_id, log.add(Kind.STDOUT, data))
        await process.wait()
        log.ended = True
        self.publish(exec_id, log.add(Kind.EXIT, self._end(process)))

    def _alive(self, exec_id: str) -> Log:
        log = self.logs.get(exec_id)
        if log is None or (log.ended and self.forget):
            raise NoSuchExec("no such exec", field="exec")
        return log

    async def exec_credit(self, call: Call, body: dict[str, Any]) -> bytes:
        log = self._alive(call.address.exec)
        log.credit = max(log.credit, body["offset"])
        log.changed.set()
        return ok()

    async def exec_stdin(self, call: Call, body: dict[str, Any]) -> bytes:
        process = self._alive(call.address.exec).process
        assert process is not None
        assert process.stdin is not None
        process.stdin.write(base64.b64decode(body["data"]))
        await process.stdin.drain()
        if body["eof"]:
            process.stdin.close()
        return ok()

    async def exec_signal(self, call: Call, body: dict[str, Any]) -> bytes:
        process = self._alive(call.address.exec).process
        assert process is not None
        os.killpg(process.pid, body["signum"]) if body.get("tree") else process.send_signal(body["signum"])
        return ok()

    async def log_fetch(self, call: Call, body: dict[str, Any]) -> bytes:
        if body["exec"] not in self.logs:
            raise NoSuchExec("no such exec", field="exec")
        frames = self.logs[body["exec"]].frames
        start = body["cursor"] or next(
            (n for n, frame in enumerate(frames) if frame.offset + frame.output > body["offset"]),
            len(frames) - 1,
        )
        page: list[bytes] = []
        room = body["max_bytes"]
        for frame in frames[start:]:
            room -= len(frame.data)
            if page and room < 0:
                break
            page.append(frame.pack())
        cursor = start + len(page)
        return pack_data(
            json.dumps({"cursor": cursor, "more": cursor < len(frames)}).encode(), pack_frames(page)
        )

    # -- files, under `root`

    def _path(self, body: dict[str, Any]) -> Path:
        return self.root / str(body["path"]).lstrip("/")

    async def file_write(self, call: Call, body: dict[str, Any]) -> bytes:
        path = self._path(body)
        self.done["write"] += 1
        path.parent.mkdir(parents=True, exist_ok=True)
        if body.get("directory"):
            path.mkdir(exist_ok=True, mode=body["mode"])
        elif body.get("target"):
            path.symlink_to(body["target"])
        else:
            if body.get("truncate") or not path.exists():
                path.write_bytes(b"")
                path.chmod(body["mode"])
            with path.open("r+b") as file:
                file.seek(body.get("offset", 0))
                file.write(unpack_data(call.data)[1])
        return ok()

    async def file_read(self, call: Call, body: dict[str, Any]) -> bytes:
        path = self._path(body)
        if not path.is_file():
            raise NoSuchFile(f"{body['path']} is not a file", field="path")
        with path.open("rb") as file:
            file.seek(body["offset"])
            return pack_data(b"{}", file.read(body["length"]))

    def _info(self, path: Path) -> dict[str, Any]:
        if not path.exists() and not path.is_symlink():
            raise NoSuchFile("no such file", field="path")
        about = path.lstat()
        target = str(path.readlink()) if path.is_symlink() else None
        return FileInfo(
            path=path.name, size=about.st_size, mode=about.st_mode, mtime=about.st_mtime, target=target
        ).model_dump()

    async def file_stat(self, call: Call, body: dict[str, Any]) -> bytes:
        return ok(self._info(self._path(body)))

    async def file_list(self, call: Call, body: dict[str, Any]) -> bytes:
        entries = sorted(path for path in self._path(body).iterdir() if path.name > body["after"])
        return ok([self._info(path) for path in entries[:100]])

    async def file_remove(self, call: Call, body: dict[str, Any]) -> bytes:
        self._path(body).unlink()
        return ok()


@contextlib.asynccontextmanager
async def peer(broker: Broker, root: Path) -> AsyncIterator[Peer]:
    """A peer behind a broker; see `peer_on`."""
    who = Credentials.new(Role.EDGE, node=NODE)
    async with Wire.connect(broker.url, who) as wire, peer_on(wire, root) as node:
        yield node


@contextlib.asynccontextmanager
async def peer_on(bus: Bus, root: Path) -> AsyncIterator[Peer]:
    """A peer that answers while the block runs, and has ended its commands when it is left."""
    async with contextlib.AsyncExitStack() as stack:
        node = Peer(bus, root)
        for subject in (*subjects.node_requests(NODE), "sandbox.*.*.*", "log.fetch.*.*"):
            await stack.enter_async_context(serving(bus, subject, node.handle))
        try:
            yield node
        finally:
            for task in [*node.tasks]:
                task.cancel()
            await asyncio.gather(*node.tasks, return_exceptions=True)
            for log in node.logs.values():
                if log.process is not None:
                    await _end(log.process)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.communicate()


def tenant() -> Credentials:
    return Credentials.new(Role.TENANT, project=PROJECT, principal=PRINCIPAL)


@contextlib.asynccontextmanager
async def client_of(broker: Broker, **options: Any) -> AsyncIterator[Client]:
    async with Client(broker.url, tenant(), **options) as client:
        yield client
