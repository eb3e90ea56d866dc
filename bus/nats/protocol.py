"""Reading the NATS client protocol: what nats-py does by regular expressions, done by splitting lines.

A message costs about 2 us instead of 10. Everything but MSG and HMSG is rare and left to nats-py's parser,
line by line. Protocol: NATS documentation, "Client Protocol".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nats.errors import ProtocolError
from nats.protocol.parser import MAX_CONTROL_LINE_SIZE, Parser

if TYPE_CHECKING:
    from dsec.bus.nats.connection import Connection

_MESSAGES: Final = {b"MSG": 5, b"HMSG": 6}
"""How many words the line of a message has, if it has a reply subject."""


class DirectParser(Parser):
    """Gives messages of direct subscriptions to their callbacks, all others to nats-py."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        super().__init__(connection)

    def reset(self) -> None:
        super().reset()
        self._chunks: list[bytes] = []
        self._have, self._needed_bytes = 0, 0

    async def parse(self, data: bytes = b"") -> None:
        """Take in what the socket had. Raises ProtocolError."""
        self._chunks.append(data)
        self._have += len(data)
        if self._have < self._needed_bytes:
            return  # in the middle of a long payload
        buffer = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks, self._have, self._needed_bytes = [], 0, 0
        end = await self._take(buffer)
        if end < len(buffer):
            rest = buffer[end:]
            self._chunks.insert(0, rest)
            self._have += len(rest)

    async def _take(self, buffer: bytes) -> int:
        """Deal with all that is whole; where the rest begins."""
        at, length, deliver = 0, len(buffer), self._connection.deliver
        while at < length:
            eol = buffer.find(b"\r\n", at)
            if eol < 0:
                if length - at > MAX_CONTROL_LINE_SIZE:
                    raise ProtocolError("nats: unknown protocol")
                return at
            words, start = buffer[at:eol].split(), eol + 2
            kind = words[0] if words else b""
            if kind not in _MESSAGES:
                await super().parse(buffer[at:start])
                at = start
                continue
            try:
                sid, after = int(words[2]), start + int(words[-1])
                body = start if kind == b"MSG" else start + int(words[-2])
                reply = words[3] if len(words) == _MESSAGES[kind] else b""
            except (ValueError, IndexError):
                raise ProtocolError("nats: malformed MSG") from None
            if after + 2 > length:
                self._needed_bytes = after + 2 - at
                return at
            at = after + 2
            message = sid, words[1], reply, buffer[body:after], buffer[start:body]
            if not deliver(*message):
                await self._connection._process_msg(*message)
        return at
