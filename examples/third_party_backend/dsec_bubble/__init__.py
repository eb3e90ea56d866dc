"""Sandboxes made by bubblewrap: a backend for dsec, shipped apart from it."""

from .driver import BubbleDriver

__all__ = ["BubbleDriver"]
