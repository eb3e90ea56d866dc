"""Sandboxes as containers: an OCI engine without a daemon, limits by cgroup, chronus as PID 1."""

from dsec.plugins.container.driver import ContainerDriver

__all__ = ["ContainerDriver"]
