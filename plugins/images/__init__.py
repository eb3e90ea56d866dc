"""Layers as EROFS files, and root file systems composed from them (DSec: EROFS over 3FS)."""

from dsec.plugins.images.store import ErofsImages

__all__ = ["ErofsImages"]
