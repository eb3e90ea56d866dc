"""Log lines on standard error, for people or as one JSON object a line; each tells of its operation.

JSON: `time` (RFC 3339, UTC), `level`, `logger`, `message`, then what is known of `op`, `project`,
`principal`, `node`, `sandbox`, `exec`, `job` and `trace`, and `exception` with the traceback. Messages quote
ids and errors, never bodies: secrets travel in those.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson

from dsec.bus import operation

Form = Literal["text", "json"]
FORMS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")
_LINES: Final = str.maketrans({"\n": "\\n", "\r": "\\r"})


class JsonFormatter(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **operation.fields(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            told["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(told, default=str).decode()


class TextFormatter(logging.Formatter):
    """`LEVEL logger: message [op=… trace=…]`, and the traceback below it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = record.message.translate(_LINES)
        told = operation.fields()
        names = " ".join(f"{name}={value}" for name, value in told.items())
        return super().formatMessage(record) + (f" [{names}]" if names else "")


def configure(form: Form = "text", level: str = "info") -> None:
    """Log `dsec` from `level` on and everything else from warnings on, in this process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter() if form == "json" else TextFormatter("%(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(form == "json")
    logging.getLogger("dsec").setLevel(level.upper())
