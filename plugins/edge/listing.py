"""What commands a sandbox has and had: its journal, told in pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dsec.bus.exec_list import ExecInfo, ExecList, ListExecs
from dsec.bus.messages import ExecEnd
from dsec.plugins.edge.trajectory import Entry

ARGUMENT: Final = 500
ARGUMENTS: Final = 20
"""Characters of each argument, and arguments, that are told."""
PAGE: Final = 256 * 1024
"""Bytes of a page, about."""


def page(entries: Iterable[Entry], request: ListExecs) -> ExecList:
    """The next ones in question, as many as a page takes."""
    execs: list[ExecInfo] = []
    room = PAGE
    for info in _wanted(entries, request):
        room -= len(info.model_dump_json())
        if execs and (room < 0 or len(execs) == request.limit):
            return ExecList(execs=execs, more=True)
        execs.append(info)
    return ExecList(execs=execs, more=False)


def _wanted(entries: Iterable[Entry], request: ListExecs) -> Iterator[ExecInfo]:
    for entry in entries:
        if entry.log > request.after and not (request.running and entry.ended):
            yield _told(entry)


def _told(entry: Entry) -> ExecInfo:
    return ExecInfo(
        exec=entry.exec,
        log=entry.log,
        argv=[argument[:ARGUMENT] for argument in entry.argv[:ARGUMENTS]],
        started=int(entry.started * 1000),
        kind="session" if entry.shell else "terminal" if entry.terminal else "command",
        session=entry.session or None,
        timeout=entry.timeout,
        detach=entry.detach,
        limits=entry.limits,
        end=ExecEnd.model_validate(entry.ended) if entry.ended else None,
    )
