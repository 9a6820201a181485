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
from contextlib import redirect_stderr, redirect_stdout
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
from tests.support.waiting import until

ROOTSTOCK = (sys.executable, "-m", "cli.main")
COMMANDS = {
    "api": "serve-api",
    "engine": "serve-engine",
    "worker": "rootstock",
    "jobs": "rootstock.jobs",
    "payments": "examples.stripe_double",
}
"""A word that only this process has on its command line."""
STORES = {"Redis": ("redis-server", "valkey-server"), "PostgreSQL": ("postgres",)}
"""Program names of the private servers."""
START_S = 150.0
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


def descendants(pid: int) -> list[int]:
    """Processes below `pid`, its children first."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    children = [int(child) for child in listed.split()]
    return children + [below for child in children for below in descendants(child)]


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
        with (self.data.parent / "up.log").open("wb") as log:
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
        """Stop at the end of the tests, whatever state they left."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
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

    def pid_of(self, name: str, setting: str = "") -> int | None:
        """The process `up` runs under this name now; of several, the one with `setting`, as NAME=VALUE."""
        for pid in descendants(self.process.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                settings = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if setting else []
            except (FileNotFoundError, ProcessLookupError):
                continue
            is_ours = COMMANDS[name].encode() in words and parent == self.process.pid
            if is_ours and (not setting or setting.encode() in settings):
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
            idle = self.counter("rootstock_requests_running") == 0
            return (
                idle
                and not self.counter("rootstock_usage_events_spooled")
                and not client.xlen(JOURNAL_STREAM)
            )

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
        return float(sum(map(float, eventually(lambda: self._figures(name), 10, f"{name} in /metrics"))))

    def _figures(self, name: str) -> list[str]:
        """Empty for the half second between the engine's answer and its first heartbeat."""
        text = httpx.get(f"{self.url}/metrics", timeout=5).text
        return re.findall(rf'^{name}(?:{{replica="[^"]+"}})? (\S+)$', text, re.MULTILINE)

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
