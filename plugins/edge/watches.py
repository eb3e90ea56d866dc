"""Watches of files inside, read by long polls (docs/adr/0030-file-watch.md).

The edge holds an inotify instance of the sandbox's own budget; a watch that nobody asks for ends after
`LEASE` seconds. A poll keeps no sandbox in use and wakes none.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from dsec.bus.errors import LimitError, NoSuchSandbox, SpecError
from dsec.bus.file_events import Watched, WatchFiles
from dsec.bus.handlers import Call, Handler, ok, typed
from dsec.bus.threads import finish
from dsec.plugins.edge.file_watch import Watch
from dsec.plugins.edge.node import Node
from dsec.plugins.edge.sandboxes import Sandbox
from dsec.plugins.edge.tree import Tree

MOST: Final = 16
"""Watches of one sandbox at a time."""
POLL: Final = 10.0
"""Seconds that a request waits for an event, at most."""
LEASE: Final = 60.0
AT_ONCE: Final = 2
"""Threads of the node that work for watches."""


class Watches:
    """The handler of `file.watch` for one node. Raises NoSuchSandbox and SpecError besides what it tells."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._turn = asyncio.Semaphore(AT_ONCE)

    def handlers(self) -> dict[tuple[str, str], Handler]:
        """By noun and verb."""
        return {("file", "watch"): typed(WatchFiles, self.watch)}

    async def watch(self, call: Call, request: WatchFiles) -> bytes:
        """Open, poll or close; each may be repeated.

        Raises NoSuchFile, Unsupported, TooLarge, LimitError, AgentCrippled.
        """
        at = call.address
        polled = request.close or request.cursor is not None
        sandbox = self._node.sandboxes.get(at.sandbox, at.project, use=not polled)
        if request.close:
            if (closed := sandbox.watches.pop(request.watch, None)) is not None:
                closed.close()
            return ok()
        if request.cursor is None:
            await self._open(sandbox, request)
            return ok(Watched())
        found = sandbox.watches.get(request.watch)
        if found is None:
            sandbox.alive()
            return ok(Watched(gone=True))
        return ok(await found.poll(request.cursor, _until(request)))

    async def _open(self, sandbox: Sandbox, request: WatchFiles) -> None:
        if not request.path.startswith("/") or "\0" in request.path:
            raise SpecError(f"{request.path!r} is not an absolute path", field="path")
        if sandbox.doomed:
            raise _destroyed(sandbox)
        sandbox.inside()
        opening = asyncio.ensure_future(self._begin(sandbox, request))
        sandbox.turning.add(opening)
        opening.add_done_callback(sandbox.turning.discard)
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():  # by a destroy
                raise _destroyed(sandbox) from None
            opening.cancel()
            await asyncio.wait([opening])
            raise

    async def _begin(self, sandbox: Sandbox, request: WatchFiles) -> None:
        async with self._turn:
            guest = sandbox.inside()
            if request.watch in sandbox.watches:
                return
            if len(sandbox.watches) >= MOST:
                raise LimitError(f"the sandbox has its {MOST} watches: end one", field="watches")
            rootfs = await self._node.images.recover(sandbox.id)
            tree = await finish(
                lambda: Tree.open(rootfs.path, rootfs.uid_base, request.path, recursive=request.recursive),
                undo=Tree.close,
            )
        self._hold(sandbox, request.watch, Watch(tree), tree, fresh=sandbox.guest is guest)

    def _hold(self, sandbox: Sandbox, name: str, watch: Watch, tree: Tree, *, fresh: bool) -> None:
        room = fresh and name not in sandbox.watches and len(sandbox.watches) < MOST
        running = self._node.tasks.spawn(watch.run(self._turn), f"watch of {sandbox.id}") if room else None
        if running is None:
            tree.close()
            sandbox.inside()
            if name not in sandbox.watches:
                raise LimitError("the watch could not begin: try again", field="watches")
            return
        running.add_done_callback(lambda _: tree.close())
        sandbox.watches[name] = watch


def _destroyed(sandbox: Sandbox) -> NoSuchSandbox:
    return NoSuchSandbox(f"{sandbox.id} is being destroyed", field="sandbox")


def expire(sandbox: Sandbox, now: float) -> None:
    """End what nobody has asked for since `LEASE` seconds; `now` is monotonic."""
    for name, watch in list(sandbox.watches.items()):
        if now - watch.used > LEASE:
            del sandbox.watches[name]
            watch.close()


def _until(request: WatchFiles) -> float:
    """Monotonic; a little before the caller gives up."""
    return time.monotonic() + min(POLL, max(0.0, request.deadline / 1000 - time.time() - 0.5))
