"""`python -m dsec.sdk.cli`: the same as the command `dsec`."""

import sys

from dsec.sdk.cli import main

sys.exit(main())
