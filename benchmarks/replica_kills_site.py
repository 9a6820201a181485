"""Runs the services whose processes `benchmarks.replica_kills` kills, and finds those processes.

Both are `rootstock up --demo`: with its engines on one machine, or as actors on a Ray cluster of nodes that
`rootstock join` keeps. Nothing is started again from here.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
from sqlalchemy import make_url

from cli.programs import CHECKOUT

START_S = 600.0
BACK_S = 300.0
SETTLE_S = 300.0
LIMIT = "tokens_per_day"
_ROOTSTOCK = (sys.executable, "-m", "cli.main")
_ENGINE, _RANK = b"serve-engine", b"engine.parallel.rank"
_RAYLET, _HEAD = b"/raylet", b"/gcs_server"


@dataclass(frozen=True)
class Victim:
    """A process that can be killed."""

    kind: str
    pid: int
    engines: tuple[int, ...]
    """The processes of the engines that end with it."""


class Service:
    """A running `rootstock up --demo` in a folder."""

    def __init__(
        self, folder: Path, num_engines: int, *options: str, settings: Mapping[str, str] | None = None
    ) -> None:
        self.folder, self.num_engines = folder, num_engines
        self.data = folder / "data"
        command = ("up", "--demo", "--port", "0", "--replicas", str(num_engines), "--data", str(self.data))
        self._process = self._begin("up.log", *command, *options, settings=settings)

    async def start(self) -> None:
        """Waits until it serves, and gives its tenant a limit that counts all tokens."""
        facts = self.data / "demo.json"
        await self._until(facts.exists, START_S, "the service")
        self.facts: dict[str, Any] = json.loads(facts.read_text())
        serving = json.loads((self.data / "serving.json").read_text())
        self.environment = {**os.environ, **serving["environment"]}
        limit = ("plan", "set", "demo", "--limit", f"{LIMIT}=1000000000")
        command = [*_ROOTSTOCK, *limit]
        await asyncio.to_thread(
            subprocess.run, command, env=self.environment, cwd=CHECKOUT, check=True, stdout=subprocess.DEVNULL
        )
        await asyncio.sleep(2)  # plans apply within a second
        await self._until(self._is_whole, START_S, "all engines")

    @property
    def models(self) -> list[str]:
        base = self.facts["base"]
        return [base, *(f"{base}:{name}" for name in self.facts["adapters"])]

    @property
    def base_url(self) -> str:
        return str(self.facts["base_url"])

    def victims(self) -> list[Victim]:
        """Returns the engines that run requests, and their other ranks."""
        engines = self._busy_engines()
        ranks = [Victim("rank", pid, (engine,)) for engine in engines for pid in _below(engine, _is_rank)]
        return [*(Victim("engine", pid, (pid,)) for pid in engines), *ranks]

    def _busy_engines(self) -> list[int]:
        """Returns the engines that run requests; all if heartbeats, which are up to half a second old, say
        that none does.
        """
        engines = self._engines()
        running = self._figures("rootstock_requests_running")
        return [pid for pid in engines if running.get(_engine_id(pid))] or engines

    def _engines(self) -> list[int]:
        return list(_below(self._process.pid, _is_engine))

    def _figures(self, name: str) -> dict[str, float]:
        """Returns a metric of each engine, by its id. Raises httpx.HTTPError."""
        shown = httpx.get(f"{self.base_url.removesuffix('/v1')}/metrics", timeout=5).text
        found = re.findall(rf'^{name}{{replica="([^"]+)"}} (\S+)$', shown, re.MULTILINE)
        return {replica: float(value) for replica, value in found}

    async def wait_until_back(self, victim: Victim) -> None:
        """Waits until the engines that end with a victim are gone, and all engines serve."""

        def is_back() -> bool:
            return not any(_is_running(pid) for pid in victim.engines) and self._is_whole()

        await self._until(is_back, BACK_S, f"all engines after the {victim.kind} was killed")

    def _is_whole(self) -> bool:
        try:
            return sum(self._figures("rootstock_engine_takes_requests").values()) == self.num_engines
        except httpx.HTTPError:
            return False

    def limit(self) -> tuple[int, int]:
        """Returns what the tenant's limit counts as used and as reserved."""
        answer = httpx.get(
            f"{self.base_url}/organization/limits",
            headers={"authorization": f"Bearer {self.facts['admin_api_key']}"},
            params={"limit": 100},
            timeout=10,
        )
        found = [one for one in answer.json()["data"] if one["metric"] == LIMIT]
        return sum(one["used"] or 0 for one in found), sum(one["held"] or 0 for one in found)

    def ledger(self) -> dict[str, tuple[int, int, str | None]]:
        """Returns prompt and completion tokens and the end of each request."""
        url = make_url(self.environment["ROOTSTOCK_DB_OWNER_URL"]).set(drivername="postgresql")
        query = "SELECT request_id, prompt_tokens, completion_tokens, finish_reason FROM usage_records"
        with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
            rows = connection.execute(query).fetchall()
        ledger = {row[0]: (row[1], row[2], row[3]) for row in rows}
        if len(ledger) < len(rows):
            raise ValueError("a request has two rows in the ledger")
        return ledger

    async def wait_until_settled(self, ids: set[str]) -> None:
        """Waits until the ledger has the end of every request, and the limit holds nothing."""

        def is_settled() -> bool:
            ledger = self.ledger()
            return all(one in ledger and ledger[one][2] is not None for one in ids) and not self.limit()[1]

        await self._until(is_settled, SETTLE_S, "the ledger")

    def stop(self) -> None:
        _stop(self._process)

    def _begin(
        self, log: str, *arguments: str, settings: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("wb") as output:
            return subprocess.Popen(
                [*_ROOTSTOCK, *arguments],
                cwd=CHECKOUT,
                env={**os.environ, **(settings or {})},
                stdout=output,
                stderr=output,
            )

    async def _until(self, holds: Callable[[], bool], seconds: float, what: str) -> None:
        until = time.monotonic() + seconds
        while not await asyncio.to_thread(holds):
            if self._process.poll() is not None:
                raise RuntimeError(f"`rootstock up` has ended; see {self.folder / 'up.log'}")
            if time.monotonic() > until:
                raise TimeoutError(f"{what}: not within {seconds:g} s; see {self.folder / 'up.log'}")
            await asyncio.sleep(0.2)


class RayService(Service):
    """`up --demo --ray`, an engine on each node of one core: the head's and those of `rootstock join`."""

    def __init__(self, folder: Path, num_engines: int, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        settings = {
            # A store that all hosts reach: the nodes have no other folder in common.
            "ROOTSTOCK_STORAGE_URL": (folder / "store").as_uri(),
            "ROOTSTOCK_RAY_PORT": self._address.rpartition(":")[2],
            "ROOTSTOCK_RAY_NODE_CPUS": "1",
        }
        super().__init__(folder, num_engines, "--ray", *options, settings=settings)
        self._nodes: list[subprocess.Popen[bytes]] = []

    async def start(self) -> None:
        token = self.data / "ray.token"
        await self._until(token.exists, START_S, "the cluster's token")
        for number in range(1, self.num_engines):
            own = ("--data", str(self.folder / f"node-{number}"), "--token", str(token), "--cpus", "1")
            self._nodes.append(self._begin(f"node-{number}.log", "join", self._address, *own))
        await super().start()

    def victims(self) -> list[Victim]:
        """Returns also Ray's processes: the raylet of each joined node whose engine runs requests, and the
        head's GCS and raylet. All engines end with the head: without it, nodes end themselves.
        """
        victims = super().victims()
        busy = {engine for victim in victims for engine in victim.engines}
        for node in self._nodes:
            engines = tuple(_below(node.pid, _is_engine))
            if busy.intersection(engines):
                victims += [Victim("ray node", pid, engines) for pid in _below(node.pid, _is_raylet)]
        up, engines = self._process.pid, tuple(self._engines())
        heads = [*_below(up, _is_head), *_below(up, _is_raylet)]
        return victims + [Victim("ray head", pid, engines) for pid in heads]

    def _engines(self) -> list[int]:
        return super()._engines() + [pid for node in self._nodes for pid in _below(node.pid, _is_engine)]

    def stop(self) -> None:
        super().stop()
        for node in self._nodes:
            _stop(node)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(120)
    finally:
        process.kill()


def _below(pid: int, wanted: Callable[[list[bytes]], bool]) -> Iterator[int]:
    """Yields the processes below one whose command line is wanted; not those below them. Looks at the
    children of every thread: an engine on Ray is one of an actor's second.
    """
    for child in _children(pid):
        if wanted(_read(child, "cmdline").split(b"\0")):
            yield child
        else:
            yield from _below(child, wanted)


def _is_engine(command: list[bytes]) -> bool:
    return _ENGINE in command


def _is_rank(command: list[bytes]) -> bool:
    return _RANK in command


def _is_raylet(command: list[bytes]) -> bool:
    return command[0].endswith(_RAYLET)


def _is_head(command: list[bytes]) -> bool:
    return command[0].endswith(_HEAD)


def _children(pid: int) -> Iterator[int]:
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            yield from map(int, listed.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue


def _engine_id(pid: int) -> str:
    named = b"ROOTSTOCK_ENGINE_ENGINE_ID="
    found = [one for one in _read(pid, "environ").split(b"\0") if one.startswith(named)]
    return found[0].removeprefix(named).decode() if found else "engine-0"


def _is_running(pid: int) -> bool:
    stat = _read(pid, "stat")
    return bool(stat) and stat.rpartition(b")")[2].split()[0] != b"Z"


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
