"""Sandboxes by the thousand for agent-training jobs: what `dsec.sdk` offers, under a short name."""

from dsec.sdk import *  # noqa: F403 - exactly what it lists, in one place
from dsec.sdk import __all__ as __all__

__version__ = "0.1.0"
