"""Sandboxes by the thousand for agent-training jobs."""

from dsec.bus.errors import DsecError, Failure
from dsec.sdk.client import Client

__all__ = ["Client", "DsecError", "Failure"]
__version__ = "0.1.0"
