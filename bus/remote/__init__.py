"""Drivers in processes of their own: `serving` on their side, `proxy` and `remotes` on the edge's.

See docs/adr/0005-drivers-in-their-own-process.md. The edge finds no difference between a `RemoteDriver` and
a driver in its own process but that it may be away.
"""
