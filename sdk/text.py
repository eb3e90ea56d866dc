"""Bytes to text and lines: a character or a line that is split over frames stays whole."""

from __future__ import annotations

import codecs

from dsec.bus.frames import Kind


class Decoder:
    """UTF-8 of standard output and standard error, each with its own state; what is not becomes U+FFFD."""

    def __init__(self) -> None:
        make = codecs.getincrementaldecoder("utf-8")
        self._of = {kind: make(errors="replace") for kind in (Kind.STDOUT, Kind.STDERR)}

    def feed(self, kind: Kind, data: bytes) -> str:
        """The characters that are complete now."""
        return self._of[kind].decode(data)

    def finish(self) -> dict[Kind, str]:
        """What was left of cut characters, by stream."""
        return {kind: decoder.decode(b"", final=True) for kind, decoder in self._of.items()}


class Lines:
    """Lines of each stream, without their end; a last line without an end counts."""

    def __init__(self) -> None:
        self._rest: dict[Kind, str] = {Kind.STDOUT: "", Kind.STDERR: ""}

    def feed(self, kind: Kind, text: str) -> list[str]:
        """The lines that are complete now."""
        *whole, self._rest[kind] = (self._rest[kind] + text).split("\n")
        return whole

    def finish(self) -> list[str]:
        """Last lines without an end."""
        return [rest for rest in self._rest.values() if rest]
