"""`rootstock up --demo` as a subprocess, its processes, its ledger and its counters."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import redis
import structlog
from openai import AsyncOpenAI
from sqlalchemy import make_url

from cli.main import main
from cli.programs import CHECKOUT
from engine.protocol import JOURNAL_STREAM
from tests.support.forks import ZYGOTE, forked_programs
from tests.support.waiting import until

ROOTSTOCK = (sys.executable, "-m", "cli.main")
STORES = {"Redis": ("redis-server", "valkey-server"), "PostgreSQL": ("postgres",)}
"""Program names of the private servers."""
START_S = 150.0
AGAIN_S = 0.5
LOOK_EVERY = 0.05
"""Seconds. A look is an HTTP request or a query: a hundred a second would take much of a core."""


def eventually(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait for a truthy answer and return it."""
    answers: list[Any] = []
    until(lambda: answers.append(condition()) or answers[-1], seconds, what, look_every=LOOK_EVERY)
    return answers[-1]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _is_zygote(pid: int) -> bool:
    """Whether it is no process of the service, but there for the tests."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == ZYGOTE
    except FileNotFoundError:
        return False


def descendants(pid: int) -> list[int]:
    """Processes below `pid`, its children first."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    children = [int(child) for child in listed.split() if not _is_zygote(int(child))]
    return children + [below for child in children for below in descendants(child)]


def _figures(name: str, shown: str) -> list[float]:
    """One of /metrics, of each replica. None for the half second between the engine's answer and its first
    heartbeat.
    """
    found = re.findall(rf'^{name}(?:{{replica="[^"]+"}})? (\S+)$', shown, re.MULTILINE)
    return list(map(float, found))


@dataclass(frozen=True)
class Row:
    """One ledger row."""

    request_id: str
    model: str
    prompt: int
    cached: int
    completion: int
    finish_reason: str | None


@dataclass(frozen=True)
class Done:
    """An operator's command that ended."""

    returncode: int
    stdout: str
    stderr: str


class Stack:
    """The demo of one data directory, through all its restarts."""

    def __init__(self, data: Path, *options: str) -> None:
        """`options`: more of the command line of `up`."""
        self.data = data
        self._options = options
        self.demo: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def output(self) -> str:
        """What `up` has printed."""
        return (self.data.parent / "up.log").read_text(errors="replace")

    def start(self) -> None:
        """Start `up` and wait for demo.json."""
        with (self.data.parent / "up.log").open("wb") as log, forked_programs():
            self._process = subprocess.Popen(
                [*ROOTSTOCK, "up", "--demo", "--port", "0", "--data", str(self.data), *self._options],
                cwd=CHECKOUT,
                # Jobs stand behind those who are served. Other tests on these cores are not.
                env=os.environ | {"ROOTSTOCK_WORKER_NICE": "0"},
                stdout=log,
                stderr=log,
            )
        # serving.json appears before demo.json, and neither may be the last run's.
        eventually(lambda: self.process.poll() is not None or self._is_published(), START_S, "demo.json")
        assert self.process.poll() is None, self.output
        self.demo = json.loads((self.data / "demo.json").read_text())

    def _is_published(self) -> bool:
        try:
            serving = json.loads((self.data / "serving.json").read_text())
        except FileNotFoundError:
            return False
        return serving["pid"] == self.process.pid and (self.data / "demo.json").exists()

    def finish(self) -> None:
        """Stop at the end of the tests, whatever state they left: asked more than once, it does not wait for
        what is under way.
        """

        deadline = time.monotonic() + 60
        try:
            while self.process.poll() is None:
                assert time.monotonic() < deadline, "the end of up: not within 60 s"
                self.process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(AGAIN_S)
        finally:
            self.process.kill()
            self.process.wait()

    # Looking at it ------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return str(self.demo["base_url"]).removesuffix("/v1")

    def client(self, key: str = "api_key", max_retries: int = 0) -> AsyncOpenAI:
        return AsyncOpenAI(
            base_url=self.demo["base_url"],
            api_key=self.demo[key],
            admin_api_key=self.demo["admin_api_key"],
            max_retries=max_retries,
            timeout=60,
        )

    def model(self, adapter: str) -> str:
        return f"{self.demo['base']}:{adapter}"

    @property
    def models(self) -> list[str]:
        """The base and every adapter."""
        return [self.demo["base"], *(self.model(name) for name in self.demo["adapters"])]

    def serving(self) -> set[str]:
        """The engines that requests are routed to, as the API process sees it that happens to answer."""
        return self._engines_with("rootstock_engine_takes_requests", r"1\.0")

    def generating(self) -> set[str]:
        """The engines that run requests."""
        return self._engines_with("rootstock_requests_running", r"[1-9]\S*")

    def _engines_with(self, metric: str, value: str) -> set[str]:
        """The engines whose figure matches a pattern."""
        line = rf'^{metric}\{{replica="([^"]+)"\}} {value}$'
        return set(re.findall(line, self._metrics(), re.MULTILINE))

    def pid_of(self, name: str) -> int | None:
        """The process `up` runs under this name now: it writes the log of that name."""
        log = str(self.data.absolute() / "logs" / f"{name}.log")
        for pid in descendants(self.process.pid):
            try:
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                is_ours = parent == self.process.pid and str(Path(f"/proc/{pid}/fd/1").readlink()) == log
            except (FileNotFoundError, ProcessLookupError):
                continue
            if is_ours:
                return pid
        return None

    def kill(self, name: str) -> int:
        """kill -9; the pid that died."""
        pid = self.pid_of(name)
        assert pid is not None, f"{name} is not running"
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_store(self, name: str) -> int:
        """kill -9 of a private server's main process; the pid that died."""
        pid = self.pid_of_store(name)
        assert pid is not None, f"{name} is not running"
        os.kill(pid, signal.SIGKILL)
        return pid

    def pid_of_store(self, name: str) -> int | None:
        for pid in descendants(self.process.pid):
            try:
                program = Path(f"/proc/{pid}/exe").resolve().name
            except OSError:
                continue
            if program in STORES[name]:
                return pid
        return None

    def wait_until_replaced(self, name: str, dead: int, seconds: float = 60.0) -> None:
        eventually(lambda: self.pid_of(name) not in (None, dead), seconds, f"a new {name}")

    def wait_until_ready(self, seconds: float = 60.0) -> None:
        def ready() -> bool:
            try:
                return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
            except httpx.HTTPError:
                return False

        eventually(ready, seconds, "/readyz")

    def setting(self, name: str) -> str:
        """A setting of the running processes."""
        serving = json.loads((self.data / "serving.json").read_text())
        return str(serving["environment"][name])

    def wait_until_metered(self, seconds: float = 30.0) -> None:
        """Return once the engine runs nothing and the journal is empty, and both stay so.

        The engine's gauges are up to half a second old: one look could fall between its last token and the
        journal.
        """
        client = redis.Redis.from_url(self.setting("ROOTSTOCK_REDIS_URL"))

        def settled() -> bool:
            if client.xlen(JOURNAL_STREAM):
                return False
            shown = self._metrics()
            figures = [
                _figures(name, shown)
                for name in ("rootstock_requests_running", "rootstock_usage_events_spooled")
            ]
            return all(figures) and not any(map(sum, figures)) and not client.xlen(JOURNAL_STREAM)

        def stays_settled() -> bool:
            if not settled():
                return False
            time.sleep(0.7)
            return settled()

        try:
            eventually(stays_settled, seconds, "an idle engine and an empty journal")
        finally:
            client.close()

    def counter(self, name: str) -> float:
        """One figure of /metrics; of engines, the sum over the replicas."""
        found: list[float] = eventually(lambda: _figures(name, self._metrics()), 10, f"{name} in /metrics")
        return sum(found)

    def _metrics(self) -> str:
        return httpx.get(f"{self.url}/metrics", timeout=5).text

    def ledger(self) -> dict[str, Row]:
        """Every row of usage_records, by request id; fails when a request has two."""
        url = make_url(self.setting("ROOTSTOCK_DB_OWNER_URL")).set(drivername="postgresql")
        columns = "request_id, model, prompt_tokens, cached_tokens, completion_tokens, finish_reason"
        with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
            rows = [Row(*row) for row in connection.execute(f"SELECT {columns} FROM usage_records")]
        by_id = {row.request_id: row for row in rows}
        assert len(by_id) == len(rows), "a request has more than one row"
        return by_id

    def operate(self, *arguments: str, stdin: str = "") -> Done:
        """Run an operator's command against this stack: the command line's own main, but without a process of
        its own, whose imports would cost a second each time."""
        out, err, before = io.StringIO(), io.StringIO(), structlog.get_config()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", ["rootstock", *arguments, "--data", str(self.data)])
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            try:
                main()
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            finally:
                structlog.configure(**before)
        return Done(code, out.getvalue(), err.getvalue())
