"""Options of every process of the platform: where its metrics are, and how it logs.

`$DSEC_METRICS`, `$DSEC_LOG` and `$DSEC_LOG_LEVEL` are the defaults, for units that start several alike.
"""

from __future__ import annotations

import argparse
import os

from dsec.bus import logs
from dsec.bus.errors import SpecError
from dsec.bus.metrics.serve import address


def observing_options(parser: argparse.ArgumentParser) -> None:
    """`--metrics`, `--log`, `--log-level`."""
    group = parser.add_argument_group("metrics and logs")
    group.add_argument(
        "--metrics",
        default=os.environ.get("DSEC_METRICS", ""),
        metavar="[IP:]PORT",
        help="serve /metrics and /healthz there, without authentication; port 0: a free one, told when it is "
        "ready (default: $DSEC_METRICS, or nowhere)",
    )
    group.add_argument(
        "--log",
        default=os.environ.get("DSEC_LOG", "text"),
        metavar="text|json",
        help="lines on standard error (default: $DSEC_LOG, or text)",
    )
    group.add_argument(
        "--log-level",
        default=os.environ.get("DSEC_LOG_LEVEL", "info"),
        metavar="|".join(logs.LEVELS),
        help="debug has a line or more for each request (default: $DSEC_LOG_LEVEL, or info)",
    )


def observe(args: argparse.Namespace) -> None:
    """Log as asked from here on. Raises SpecError naming what cannot be understood."""
    if args.log not in logs.FORMS:
        raise SpecError(f"--log takes {' or '.join(logs.FORMS)}, not {args.log!r}", field="log")
    if args.log_level not in logs.LEVELS:
        raise SpecError(f"--log-level takes one of {', '.join(logs.LEVELS)}", field="log_level")
    if args.metrics:
        address(args.metrics)
    logs.configure("json" if args.log == "json" else "text", args.log_level)
