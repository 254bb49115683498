"""Structured logs: a JSON object a line. What comes from outside cannot make a line of its own; tokens never appear."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TextIO

from easyscale.service.http.clean import hide_tokens

log = logging.getLogger("easyscale.http.requests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A request. `route` is the template of the path: ids and queries are not in it."""

    method: str
    route: str
    status: int
    ms: float
    user: str
    address: str


def write(line: Line) -> None:
    if log.isEnabledFor(logging.INFO):
        log.info("request", extra={"line": line})


class JsonLines(logging.Formatter):
    """Time, level, logger, message, and the fields of a request or the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line = getattr(record, "line", None)
        if isinstance(line, Line):
            entry |= asdict(line)
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        # JSON escapes all control characters but this one
        return hide_tokens(json.dumps(entry, default=str)).replace("\x7f", "\\u007f")


def setup_logs(stream: TextIO | None = None, level: int = logging.INFO) -> logging.Handler:
    """Everything of ours and of the HTTP server goes to one stream, stderr unless told."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("easyscale", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False
    # its own line for each request names the query, where a careless client may have put a token
    logging.getLogger("uvicorn.access").disabled = True
    return handler
