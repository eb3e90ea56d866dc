"""Sandboxes without asyncio: what `dsec.sdk.sync` offers, under a short name."""

from dsec.sdk import sync
from dsec.sdk.sync import *  # noqa: F403 - all of it, whatever it comes to have

__all__ = sync.__all__
