"""`python -m dsec.plugins.images [functions]`: build or verify the base image, or that of calls; its path."""

from __future__ import annotations

import asyncio
import sys

from dsec.bus.errors import DsecError
from dsec.plugins.images.base import base_image, functions_image


def main() -> int:
    """Progress goes to standard error. Exit status 0, or 1 with the reason there."""
    try:
        make = functions_image if sys.argv[1:] == ["functions"] else base_image
        image = asyncio.run(make(lambda line: print(line, file=sys.stderr)))  # noqa: T201 - a command
    except DsecError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    sys.stdout.write(f"{image}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
