"""`dsec job VERB JOB`: all sandboxes of a job at once.

dsec job create 1000 --image debian-12-python    a batch: prints its job once every sandbox can be read
dsec job stat JOB                                states over all nodes, and its batches
dsec job pause|resume|kill|cancel JOB            kill destroys; cancel creates no more, what runs runs on
"""

from __future__ import annotations

import argparse
from typing import Any

from dsec.bus.core.jobs.messages import JobStatus
from dsec.sdk.cli import options
from dsec.sdk.cli.output import emit, say, table, working

VERBS = {
    "stat": "states of its sandboxes, and its batches",
    "pause": "freeze every sandbox that runs",
    "resume": "let every paused sandbox go on",
    "kill": "destroy every sandbox, create no more",
    "cancel": "create no more of its batches",
}


def register(subparsers: Any) -> None:
    """Add the command `job`."""
    parser = subparsers.add_parser(
        "job",
        help="all sandboxes of a job",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(required=True, metavar="verb")
    make = verbs.add_parser("create", help="create many sandboxes in one call")
    options.client_options(make)
    make.add_argument("count", type=int, help="how many")
    options.spec_options(make)
    make.add_argument("--wait", action="store_true", help="until all run or have failed")
    make.set_defaults(handler=create)
    for verb, does in VERBS.items():
        one = verbs.add_parser(verb, help=does)
        options.client_options(one)
        one.add_argument("job", help="job id")
        one.set_defaults(handler=operate, verb=verb)


async def create(args: argparse.Namespace) -> int:
    """Print the job's id; 1 when sandboxes failed meanwhile."""
    async with options.client_of(args) as client:
        batch = await client.create_many(args.count, **options.spec_of(args))
        with working(f"waiting for {args.count} sandboxes"):
            progress = await (batch.wait() if args.wait else batch.progress())
    if args.json:
        emit({"job": batch.job, "running": progress.running, "failures": progress.failures})
    else:
        say(batch.job)
    return 1 if progress.failed else 0


async def operate(args: argparse.Namespace) -> int:
    """Print the status; 1 when the verb failed for a sandbox, or a node did not answer."""
    async with options.client_of(args) as client:
        with working(f"{args.verb} of {args.job}"):
            status: JobStatus = await getattr(client.job(args.job), args.verb)()
    if args.json:
        emit(status)
    else:
        table(("what", "count"), _rows(status))
        for failed in status.failed:
            say(f"{failed.sandbox}: {failed.error['code']}: {failed.error['message']}")
        for node in status.unreached:
            say(f"{node} does not answer")
    return 1 if status.failed or status.unreached else 0


def _rows(status: JobStatus) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [(state.value, count) for state, count in status.states.items()]
    for batch in status.batches:
        failed = sum(batch.failures.values())
        told = f"batch {batch.op}: {batch.phase}{', cancelled' if batch.cancelled else ''}"
        rows.append((told, f"{batch.running} of {batch.count} running, {failed} failed"))
    return rows
