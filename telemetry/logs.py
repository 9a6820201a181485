"""Logs: one JSON object per line, or aligned columns for a person at a terminal; never a key in either.

Owns the structlog configuration of a process and the redaction of secrets. Refuses to know who logs what.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, TextIO

import structlog

Format = Literal["json", "console", "auto"]

REDACTED = "[redacted]"
_SECRET_NAME = re.compile(
    r"authorization|api_?key$|secret|password|passwd|plaintext|^token$|cookie", re.IGNORECASE
)
_SECRET_TEXT = re.compile(
    r"""
    \b(?:sk|rk|whsec)[-_][A-Za-z0-9_\-]{12,}   # our keys, and the usual shapes of others'
    | (?<=Bearer\ )[^\s'",}]+                  # whatever stands in an Authorization header
    | (?<=://)[^\s:/@]+:[^\s/@]+(?=@)          # user and password of a database URL
    """,
    re.VERBOSE | re.IGNORECASE,
)


def configure(process: str, level: str = "info", form: Format = "auto", stream: TextIO | None = None) -> None:
    """Set up logging for this process; call once, in its main.

    Args:
        process: "api", "engine-0"...: stands in every line.
        level: the least severe level that is written.
        form: "auto" is "console" on a terminal and "json" elsewhere.
        stream: where to write; standard error when None.
    """
    stream = stream or sys.stderr
    threshold = logging.getLevelNamesMapping()[level.upper()]
    console = form == "console" or (form == "auto" and stream.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty())
        if console
        else structlog.processors.JSONRenderer(sort_keys=False)
    )
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if console else "iso", utc=not console),
        structlog.processors.StackInfoRenderer(),
        *([] if console else [structlog.processors.format_exc_info]),
        _Name(process),
        redact,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    # Libraries log through the standard library: same lines, same redaction.
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, redact, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(threshold, logging.INFO))
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = name != "uvicorn.access"


class _Name:
    """Puts the process's name into each line."""

    def __init__(self, process: str) -> None:
        self._process = process

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event["process"] = self._process
        return event


def redact(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """structlog processor: no secret leaves in a log line, by the name of a field or the look of its text."""
    for name, value in event.items():
        event[name] = _clean(name, value)
    return event


def _clean(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if _SECRET_NAME.search(name):
        return REDACTED
    if isinstance(value, str):
        return _SECRET_TEXT.sub(REDACTED, value)
    if isinstance(value, dict):
        return {key: _clean(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean("", inner) for inner in value]
    if isinstance(value, BaseException):
        return _SECRET_TEXT.sub(REDACTED, repr(value))
    return value
