"""`dsec project create|ls|quota`: projects below one's own, and how much each may use."""

from __future__ import annotations

import argparse
from typing import Any

from dsec.bus.projects import Project, Quota
from dsec.sdk.cli import options
from dsec.sdk.cli.output import emit, say, size, table


def register(subparsers: Any) -> None:
    """Add the command `project`."""
    parser = subparsers.add_parser("project", help="projects and their quotas", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    create = commands.add_parser("create", help="make a project below one's own")
    create.add_argument("project", help="p-…, unique in the installation")
    create.add_argument("--parent", help="p-…, one's own or one below (default: one's own)")
    create.set_defaults(handler=created)
    quota = commands.add_parser("quota", help="replace the quota of a project below one's own")
    quota.add_argument("project", help="p-…")
    quota.set_defaults(handler=limited)
    for command in (create, quota):
        _quota_options(command)
        options.client_options(command)
    listing = commands.add_parser("ls", help="one's own project and those below it")
    options.client_options(listing)
    listing.set_defaults(handler=ls)


def _quota_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("quota", "of the project and all below it; what is left out has none")
    group.add_argument("--sandboxes", type=int, help="live ones")
    group.add_argument("--cpu", type=float, help="cores promised to live sandboxes")
    group.add_argument("--memory", type=options.amount, help="bytes promised to them, or with K, M, G")
    group.add_argument("--creates-per-second", type=float)


def _quota_of(args: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(args, name) for name in Quota.model_fields}
    return {name: value for name, value in given.items() if value is not None}


async def created(args: argparse.Namespace) -> int:
    """Make a project. Raises SpecError, Conflict, GoneError, QuotaExceeded, PolicyError."""
    async with options.client_of(args) as client:
        project = await client.projects.create(args.project, parent=args.parent, quota=_quota_of(args))
    return _tell(project, args)


async def limited(args: argparse.Namespace) -> int:
    """Set a quota. Raises SpecError, GoneError, QuotaExceeded, PolicyError."""
    async with options.client_of(args) as client:
        project = await client.projects.set_quota(args.project, _quota_of(args))
    return _tell(project, args)


async def ls(args: argparse.Namespace) -> int:
    """A table, or a project a line."""
    async with options.client_of(args) as client:
        projects = [project async for project in client.projects.list()]
    if args.json:
        for project in projects:
            emit(project)
    else:
        columns = ("project", "below", "sandboxes", "cpu", "memory", "creates/s")
        table(columns, (_row(project) for project in projects))
    return 0


def _tell(project: Project, args: argparse.Namespace) -> int:
    if args.json:
        emit(project)
    else:
        say(project.project)
    return 0


def _row(project: Project) -> tuple[object, ...]:
    quota = project.quota
    shown = (
        quota.sandboxes,
        quota.cpu,
        None if quota.memory is None else size(quota.memory),
        quota.creates_per_second,
    )
    return project.project, project.parent or "-", *("-" if one is None else one for one in shown)
