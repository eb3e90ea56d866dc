"""Generated from sdk/file_watch.py by `make twin`: change that file, not this one."""

from __future__ import annotations

from typing import Self

from dsec.bus.file_events import FileEvent
from dsec.sdk.file_watch import FileWatch as AsyncFileWatch
from dsec.sdk.twin import base as twin


class FileWatch(twin.Twin[AsyncFileWatch]):
    """The events of one watch, made by `Files.watch`; ends when the watched path is gone.

    Every step raises NoSuchSandbox, NodeLost and BrokerDown, TooLarge once there are too many directories,
    SpecError once the sandbox is stopped, NoSuchFile when the node was restarted and the path is gone.
    """

    def __iter__(self) -> Self:
        """The next events, as they happen."""
        return self

    def __next__(self) -> FileEvent:
        """A poll acknowledges what was handed out before, so that nothing is lost on the way."""
        try:
            return self._portal.call(self._origin.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None
