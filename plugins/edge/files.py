"""Requests about files: each passed to the agent inside, with what is missing around it."""

from __future__ import annotations

from typing import Final

from dsec.bus.chronus.guest import Guest
from dsec.bus.errors import DiskFull, LimitError, SpecError
from dsec.bus.frames import pack_data, unpack_data
from dsec.bus.handlers import Call, Handler, ok, typed
from dsec.bus.messages import FileRequest, ReadFile, WriteFile
from dsec.plugins.edge.node import Node
from dsec.plugins.edge.once import Once

FULL: Final = 1 << 20
"""Bytes free on the node's disk below which it counts as full."""


class Files:
    """Handlers of `file.*` for one node. All raise NoSuchSandbox, NoSuchFile, AgentCrippled, SpecError."""

    def __init__(self, node: Node, once: Once) -> None:
        self._node = node
        self._once = once

    def handlers(self) -> dict[tuple[str, str], Handler]:
        """By noun and verb."""
        return {
            ("file", "stat"): typed(FileRequest, self.stat),
            ("file", "list"): typed(FileRequest, self.list),
            ("file", "read"): typed(ReadFile, self.read),
            ("file", "write"): typed(WriteFile, self._once.around(self.write), raw=True),
            ("file", "remove"): typed(FileRequest, self._once.around(self.remove)),
        }

    def _guest(self, call: Call, request: FileRequest) -> Guest:
        if not request.path.startswith("/"):
            raise SpecError(f"{request.path!r} is not absolute", field="path")
        if "\0" in request.path:
            raise SpecError("a path has no NUL byte", field="path")
        return self._node.sandboxes.get(call.address.sandbox, call.address.project).inside()

    async def stat(self, call: Call, request: FileRequest) -> bytes:
        """A FileInfo."""
        return ok(await self._guest(call, request).stat(request.path))

    async def list(self, call: Call, request: FileRequest) -> bytes:
        """A page of FileInfo in the order of names; an empty one is the end."""
        entries = await self._guest(call, request).list(request.path, request.after)
        return ok([entry.model_dump(mode="json") for entry in entries])

    async def read(self, call: Call, request: ReadFile) -> bytes:
        """Raw: as many bytes as there are, up to `length`; fewer are the end of the file."""
        data = await self._guest(call, request).read(request.path, request.offset, request.length)
        return pack_data(b"{}", data)

    async def write(self, call: Call, request: WriteFile) -> bytes:
        """Write bytes, make a directory or a symbolic link; missing parents are made."""
        guest = self._guest(call, request)
        try:
            await _write(guest, request, unpack_data(call.data)[1])
        except LimitError as error:
            if self._node.disk_free() < FULL:  # the inside cannot tell the node's disk from its own limit
                raise DiskFull(f"the node's disk is full: {request.path} was not written") from error
            raise
        return ok()

    async def remove(self, call: Call, request: FileRequest) -> bytes:
        """A file, or with `recursive` a tree."""
        await self._guest(call, request).remove(request.path, request.recursive)
        return ok()


async def _write(guest: Guest, request: WriteFile, data: bytes) -> None:
    if request.target is not None:
        await guest.symlink(request.path, request.target)
    elif request.directory:
        await guest.mkdir(request.path, request.mode)
    else:
        await guest.write(request.path, request.offset, data, mode=request.mode, truncate=request.truncate)
