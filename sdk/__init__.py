"""libdsec: the asynchronous client, with which trainers use the platform; imports no part of a node."""

from dsec.bus.errors import DsecError, Failure
from dsec.bus.file_events import FileEvent
from dsec.bus.frames import Kind
from dsec.bus.messages import Ended, FileInfo, Layer, Record, State
from dsec.sdk import sync
from dsec.sdk.client import Client
from dsec.sdk.exec import Exec
from dsec.sdk.file_watch import FileWatch
from dsec.sdk.files import Files
from dsec.sdk.fn import Artefact, FnFailed, FnResult, Judged
from dsec.sdk.jobs import Batch, Job, Progress
from dsec.sdk.result import CommandFailed, Result
from dsec.sdk.sandbox import Sandbox
from dsec.sdk.session import Session
from dsec.sdk.tracing import trace
from dsec.sdk.watch import Change

__all__ = [
    "Artefact",
    "Batch",
    "Change",
    "Client",
    "CommandFailed",
    "DsecError",
    "Ended",
    "Exec",
    "Failure",
    "FileEvent",
    "FileInfo",
    "FileWatch",
    "Files",
    "FnFailed",
    "FnResult",
    "Job",
    "Judged",
    "Kind",
    "Layer",
    "Progress",
    "Record",
    "Result",
    "Sandbox",
    "Session",
    "State",
    "sync",
    "trace",
]
