"""What the kernel's accounts say of a sandbox, on every layout of cgroups."""

from pathlib import Path

from dsec.plugins.container import ContainerDriver


def group_of(driver: ContainerDriver, sandbox: str, controller: str) -> Path:
    """Directory of the sandbox's group where `controller` is."""
    group = driver._cgroups().of(sandbox)
    return group.layout.at(controller) / group.path


def memory_of(driver: ContainerDriver, sandbox: str) -> int:
    """Bytes that are charged to it."""
    directory = group_of(driver, sandbox, "memory")
    name = "memory.usage_in_bytes" if "memory" in driver._cgroups().layout.v1 else "memory.current"
    return int((directory / name).read_text())
