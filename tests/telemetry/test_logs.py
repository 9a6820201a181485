"""Logs: lines a machine and a person can read, and no key in any."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog

from telemetry import logs
from telemetry.trace_context import TraceContext, in_trace

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-rs-0123456789abcdefABCDEFkey-one"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Where configured logs go; the process's own configuration comes back afterwards."""
    root = logging.getLogger()
    before, level = root.handlers, root.level
    yield io.StringIO()
    structlog.reset_defaults()
    root.handlers = before
    root.setLevel(level)


def test_json_lines_name_process_level_and_time(written: io.StringIO) -> None:
    logs.configure("api-3", form="json", stream=written)
    structlog.get_logger("x").info("hello", count=3)
    logging.getLogger("library").warning("careful with %s", "that")
    structlog.get_logger("x").debug("unseen")
    first, second = (json.loads(line) for line in written.getvalue().splitlines())
    assert (first["event"], first["count"], first["level"], first["process"]) == ("hello", 3, "info", "api-3")
    assert first["timestamp"].endswith("Z")
    told = datetime.fromisoformat(first["timestamp"])
    assert abs(told - datetime.now(UTC)) < timedelta(minutes=1)
    assert (second["event"], second["level"]) == ("careful with that", "warning")


def test_every_line_has_the_second_it_was_written_in(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.configure("api", form="json", stream=written)
    for moment in (1_700_000_000_000_001_000, 1_700_000_000_999_999_999, 1_700_000_001_000_000_000):
        monkeypatch.setattr(time, "time_ns", lambda moment=moment: moment)
        structlog.get_logger().info("x")
    stamps = [json.loads(line)["timestamp"] for line in written.getvalue().splitlines()]
    assert stamps == [f"2023-11-14T22:13:{rest}Z" for rest in ("20.000001", "20.999999", "21.000000")]


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_line_tells_what_was_raised_and_where(written: io.StringIO, form: logs.Format) -> None:
    logs.configure("api", form=form, stream=written)
    try:
        raise KeyError("nothing there")
    except KeyError as error:
        structlog.get_logger().error("failed", exc_info=error)
    structlog.get_logger().info("here", stack_info=True)
    text = written.getvalue()
    assert "KeyError" in text
    assert text.count("test_a_line_tells_what_was_raised") >= 2, "where it was raised, and the stack"


def test_auto_is_json_where_nobody_watches(written: io.StringIO) -> None:
    logs.configure("api", stream=written)
    structlog.get_logger().info("hello")
    assert json.loads(written.getvalue())["event"] == "hello"


def test_console_lines_are_for_reading(written: io.StringIO) -> None:
    logs.configure("api", form="console", stream=written)
    structlog.get_logger().info("hello", count=3)
    assert "hello" in written.getvalue()
    assert "count=3" in written.getvalue()
    with pytest.raises(json.JSONDecodeError):
        json.loads(written.getvalue())


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_key_in_any_line(written: io.StringIO, form: logs.Format) -> None:
    logs.configure("api", level="debug", form=form, stream=written)
    log = structlog.get_logger()
    log.info("plain", text=f"tried {KEY} twice")
    log.info(f"in the event {KEY}")
    log.info("header", authorization=f"Bearer {KEY}", headers={"Authorization": "Bearer opaque-thing-1"})
    log.info("nested", items=[f"x {KEY}", {"api_key": "anything-else-2"}], pair=(KEY,))
    log.info("url", url="postgresql://rootstock:opensesame3@db/x")
    log.info("object", error=ValueError(f"bad key {KEY}"))
    secret_local = f"local {KEY}"
    try:
        raise RuntimeError(f"failed with Bearer opaque-thing-4 and {secret_local}")
    except RuntimeError:
        log.exception("raised")
    logging.getLogger("library").error("library says %s", KEY)
    try:
        raise ValueError(f"library raised {KEY}")
    except ValueError:
        logging.getLogger("library").exception("library raised")
    text = written.getvalue()
    assert text.count("[redacted]") >= 9
    for secret in (KEY, KEY[-8:], "opaque-thing", "anything-else-2", "opensesame3"):
        assert secret not in text
    assert "@db/x" in text


def test_an_unknown_level_is_refused(written: io.StringIO) -> None:
    with pytest.raises(KeyError):
        logs.configure("api", level="loud", stream=written)


def test_a_log_on_a_full_disk_keeps_no_process_from_its_work(written: io.StringIO) -> None:
    full = Path("/dev/full").open("w")  # noqa: SIM115  closing it fails, too
    logs.configure("engine", form="json", stream=full)
    structlog.get_logger().warning("lost", filler="x" * 100_000)
    logging.getLogger("library").warning("lost as well")
    with pytest.raises(OSError, match="No space"):
        full.close()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_process_on_a_full_disk_ends_with_its_own_status(stream: str) -> None:
    program = f"""
import sys
from telemetry import logs
logs.configure("engine", form="json")
sys.{stream}.write("held")
sys.exit(3)
"""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=buffered, check=False, **{stream: full}
        )
    assert ended.returncode == 3


def test_lines_have_the_ids_of_their_span(written: io.StringIO) -> None:
    logs.configure("api", form="json", stream=written)
    log = structlog.get_logger("x")
    with in_trace(TraceContext("a" * 32, "b" * 16)):
        log.info("within")
        logging.getLogger("library").warning("within, too")
        log.info("of another", trace_id="c" * 32, span_id="d" * 16)
    log.info("after")
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    ids = [(line.get("trace_id"), line.get("span_id")) for line in lines]
    here = "a" * 32, "b" * 16
    assert ids == [here, here, ("c" * 32, "d" * 16), (None, None)]
