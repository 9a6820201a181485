"""Configures logging: one JSON object per line, or aligned columns on a terminal; redacts secrets in both."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import re
import sys
import time
from collections.abc import Callable, MutableMapping
from functools import lru_cache
from io import TextIOBase
from typing import Any, Literal, TextIO, cast

import msgspec
import structlog

from telemetry.trace_context import current_trace

Format = Literal["json", "console", "auto"]
Event = MutableMapping[str, Any]
"""A line's fields, as structlog's processors pass them on."""

REDACTED = "[redacted]"
CHATTY = ("alembic", "celery.beat", "celery.app.trace", "celery.worker.strategy")
"""Libraries that log every schema lookup and every periodic task at INFO."""
_SECRET_NAME = re.compile(
    r"authorization|api_?key$|secret|password|passwd|plaintext|^token$|cookie", re.IGNORECASE
)
_SECRET_TEXT = re.compile(
    r"""
    \b(?:rs|sk|rk|whsec)[-_][A-Za-z0-9_\-]{12,}   # our keys, and the usual shapes of others'
    | (?<=Bearer\ )[^\s'",}]+                  # whatever stands in an Authorization header
    | (?<=://)[^\s:/@]+:[^\s/@]+(?=@)          # user and password of a database URL
    """,
    re.VERBOSE | re.IGNORECASE,
)

_SECRET_SIGNS = ("rs-", "rs_", "sk-", "sk_", "rk-", "rk_", "whsec", "bearer ", "://")
"""Every match of `_SECRET_TEXT` contains one of these, in lower case."""


def configure(process: str, level: str = "info", form: Format = "auto", stream: TextIO | None = None) -> None:
    """Configures logging for this process; call once, in its main.

    Args:
        process: "api", "engine-0"...: in every line.
        level: the least severe level that is written.
        form: "auto" is "console" on a terminal and "json" elsewhere.
        stream: where to write; standard error when None.
    """
    lines = _Unfailing(stream or sys.stderr)
    threshold = logging.getLevelNamesMapping()[level.upper()]
    console = form == "console" or (form == "auto" and lines.isatty())
    renderer = _Scrubbed(
        structlog.dev.ConsoleRenderer(
            colors=lines.isatty(),
            # The prettier one prints local variables: keys among them.
            exception_formatter=structlog.dev.plain_traceback,
        )
        if console
        else _json_line
    )
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        _with_trace,
        structlog.processors.add_log_level,
        _traces_apart if console else _traces_as_text,
        _Stamp(process, _time_of_day if console else _Clock()),
        redact,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, lines)),
        cache_logger_on_first_use=False,
    )
    # Libraries log through the standard library: same lines, same redaction.
    handler = logging.StreamHandler(lines)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(threshold, logging.INFO))
    for name in CHATTY:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = name != "uvicorn.access"
    atexit.unregister(_give_up_unwritten)
    atexit.register(_give_up_unwritten)


class _Unfailing(TextIOBase):
    """A stream that drops lines it cannot write, as on a full disk: logging must not stop a process from
    working.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


def _give_up_unwritten() -> None:
    """Drops what standard output and error cannot write at the end, as on a full disk: otherwise Python would
    end with status 120, whatever the process's own was.
    """
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except (OSError, ValueError):
            setattr(sys, name, None)


def _with_trace(logger: Any, method: str, event: Event) -> Event:
    """Adds the ids of the span that the line belongs to, if any."""
    trace = current_trace()
    if trace is not None:
        event.setdefault("trace_id", trace.trace_id)
        event.setdefault("span_id", trace.span_id)
    return event


_with_stack = structlog.processors.StackInfoRenderer()


def _traces_apart(logger: Any, method: str, event: Event) -> Event:
    """Returns a line's fields for the console renderer, which formats the exception itself."""
    return _with_stack(logger, method, event) if "stack_info" in event else event


def _traces_as_text(logger: Any, method: str, event: Event) -> Event:
    """Formats exceptions as text; most lines have none and cost nothing."""
    if "stack_info" in event:
        event = _with_stack(logger, method, event)
    if "exc_info" in event:
        event = structlog.processors.format_exc_info(logger, method, event)
    return event


class _Clock:
    """Formats the time as ISO 8601, in UTC. The text of a second, the expensive part, is cached."""

    def __init__(self) -> None:
        self._last = -1, ""  # one object: threads that log see both parts or neither

    def __call__(self) -> str:
        now, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
        second, text = self._last
        if second != now:
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
            self._last = now, text
        return f"{text}.{nanoseconds // 1000:06d}Z"


def _time_of_day() -> str:
    return time.strftime("%H:%M:%S")


class _Stamp:
    """Adds the process's name and the time to each line."""

    def __init__(self, process: str, clock: Callable[[], str]) -> None:
        self._process = process
        self._clock = clock

    def __call__(self, logger: Any, method: str, event: Event) -> Event:
        event["timestamp"] = self._clock()
        event["process"] = self._process
        return event


def redact(logger: Any, method: str, event: Event) -> Event:
    """Replaces values under secrets' names, however deep they are nested. A structlog processor."""
    for name, value in event.items():
        if type(value) not in _PLAIN and (type(value) is not str or _names_secret(name)):
            event[name] = _clean(name, value)
    return event


_PLAIN = frozenset({bool, int, float, type(None)})


def _clean(name: str, value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if _names_secret(name):
        return REDACTED
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return {key: _clean(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean("", inner) for inner in value]
    return value


@lru_cache(maxsize=1024)
def _names_secret(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


_encode = msgspec.json.Encoder(enc_hook=repr).encode


def _json_line(logger: Any, method: str, event: Event) -> str:
    try:
        return _encode(event).decode()
    except (TypeError, ValueError):  # halves of characters, keys that are no text
        return json.dumps(event, default=repr, skipkeys=True)


class _Scrubbed:
    """Renders a line, then removes what looks like a secret: messages and tracebacks included."""

    def __init__(self, renderer: Callable[..., str | bytes]) -> None:
        self._renderer = renderer

    def __call__(self, logger: Any, method: str, event: Event) -> str:
        line = str(self._renderer(logger, method, event))
        lower = line.lower()
        # Most lines have nothing that could begin a secret, and the whole pattern costs as much as the line.
        for sign in _SECRET_SIGNS:
            if sign in lower:
                return _SECRET_TEXT.sub(REDACTED, line)
        return line
