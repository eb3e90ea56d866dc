"""Requests whose repeat has no effect of its own: see `bus.once`."""

from dsec.bus.once import Once

__all__ = ["Once"]
