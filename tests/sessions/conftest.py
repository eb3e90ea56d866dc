"""The edge's own fixtures: a real site with real containers."""

from tests.edge.conftest import client, sandbox, site, stack, wire

__all__ = ["client", "sandbox", "site", "stack", "wire"]
