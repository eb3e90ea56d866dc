"""Sandboxes by the thousand for agent-training jobs: what `dsec.sdk` offers, under a short name."""

from dsec.sdk import (
    Client,
    CommandFailed,
    DsecError,
    Ended,
    Exec,
    Failure,
    FileInfo,
    Files,
    Kind,
    Layer,
    Record,
    Result,
    Sandbox,
    State,
)

__all__ = [
    "Client",
    "CommandFailed",
    "DsecError",
    "Ended",
    "Exec",
    "Failure",
    "FileInfo",
    "Files",
    "Kind",
    "Layer",
    "Record",
    "Result",
    "Sandbox",
    "State",
]
__version__ = "0.1.0"
