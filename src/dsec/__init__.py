"""Sandboxes by the thousand for agent-training jobs: what `dsec.sdk` offers, under a short name."""

from dsec.sdk import (
    Batch,
    Change,
    Client,
    CommandFailed,
    DsecError,
    Ended,
    Exec,
    Failure,
    FileInfo,
    Files,
    Job,
    Kind,
    Layer,
    Progress,
    Record,
    Result,
    Sandbox,
    State,
)

__all__ = [
    "Batch",
    "Change",
    "Client",
    "CommandFailed",
    "DsecError",
    "Ended",
    "Exec",
    "Failure",
    "FileInfo",
    "Files",
    "Job",
    "Kind",
    "Layer",
    "Progress",
    "Record",
    "Result",
    "Sandbox",
    "State",
]
__version__ = "0.1.0"
