"""Runs the service that `benchmarks.chaos` kills: its stores, its accounts and its processes.

Starts and restarts each of them, with settings of their own: real servers that keep what they acknowledged,
one engine without a model, API processes behind one listener as with `rootstock up`, and workers.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import redis.asyncio

from adapters.bases import Bases
from adapters.service import AdapterService
from benchmarks.chaos_load import Caller
from benchmarks.chaos_process import Order, Point, written
from billing.pricing import PriceService
from cli.local.postgres import serving_url
from db import schema
from db.session import Database
from engine.protocol import AdapterRef
from tenants.actors import OPERATOR
from tenants.limits.kinds import Limit, Metric
from tenants.service import account_services

ROOT = Path(__file__).resolve().parent.parent
BASE = ROOT / "examples/sapling/weights/base"
BASE_NAME = "sapling"
SECRET = "of accounts that live as long as a run"  # noqa: S105  of accounts that live as long as a run
NUM_TENANTS = 5
LIMITS = {
    Metric.TOKENS_PER_DAY: 10**12,
    Metric.REQUESTS_PER_DAY: 10**9,
    Metric.SPEND_PER_MONTH: 10**15,
    Metric.CONCURRENT_REQUESTS: 1000,
}
"""Ample, so that everything is counted; the last tenant has room for two requests at once."""
APIS, WORKERS = ("api-1", "api-2"), ("worker-1", "worker-2")


class DidNotStart(Exception):
    """A piece of the site is not there; the message says which."""


@dataclass
class Process:
    """A forked process: its group's number, and its exit status once it has one."""

    pid: int
    ended: asyncio.Future[int]

    def kill(self, number: int = signal.SIGKILL) -> None:
        """The process with all that it started; nothing where it is gone."""
        if not self.ended.done():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


class Nursery:
    """That of `benchmarks.chaos_process`: where processes come from."""

    def __init__(self, log: Path, listener: socket.socket) -> None:
        self._log, self._listener = log, listener
        self._pids: asyncio.Queue[int] = asyncio.Queue()
        self._ends: dict[int, asyncio.Future[int]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        code = f"from benchmarks.chaos_process import nursery; nursery({self._listener.fileno()})"
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                code,
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                pass_fds=(self._listener.fileno(),),
            )
        assert self._process.stdout is not None
        if not await self._process.stdout.readline():
            raise DidNotStart(f"what starts processes: see {self._log}")
        self._reading = asyncio.create_task(self._read(self._process.stdout))

    async def fork(self, order: Order) -> Process:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(written(order))
        pid = await self._pids.get()
        return Process(pid, self._ends[pid])

    async def close(self) -> None:
        if self._process is None or self._reading is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reading

    async def _read(self, answers: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        while line := await answers.readline():
            said: dict[str, Any] = json.loads(line)
            if "pid" in said:
                self._ends[said["pid"]] = loop.create_future()
                self._pids.put_nowait(said["pid"])
            else:
                self._ends.pop(said["ended"]).set_result(said["status"])


class Store:
    """Redis or PostgreSQL, in a process that does nothing else: it waits for what it starts."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._folder = kind, folder
        self._process: asyncio.subprocess.Process | None = None
        self.url = ""

    async def open(self) -> None:
        code = (
            f"from benchmarks.chaos_process import keep_store; "
            f"keep_store({self._kind!r}, {str(self._folder)!r})"
        )
        with (self._folder / f"{self._kind}-keeper.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", code),
                cwd=ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        self.url = (await self._answer())["url"]

    async def restart(self) -> None:
        """Kill it, and start it again on what it had on disk."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        await self._answer()

    async def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            await self._process.wait()

    async def _answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise DidNotStart(f"{self._kind}: see {self._folder / f'{self._kind}-keeper.log'}")
        said: dict[str, Any] = json.loads(line)
        return said


@dataclass
class Site:
    """Everything, with nothing running yet but the stores."""

    folder: Path
    redis: Store
    postgres: Store
    nursery: Nursery
    listener: socket.socket
    callers: list[Caller] = field(default_factory=list)
    num_engines: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    @property
    def state_dir(self) -> Path:
        """The engine's: what it owes, and what Redis has not taken yet."""
        return self.folder / "engine" / "engine-0"

    @property
    def witnesses(self) -> Path:
        return self.folder / "witnesses"

    @property
    def engine_endpoint(self) -> str:
        return f"ipc://{self.folder}/engine.sock"

    def environment(self, name: str) -> dict[str, str]:
        return {
            "ROOTSTOCK_ENGINE_BASE": str(BASE),
            "ROOTSTOCK_ENGINE_BASE_NAME": BASE_NAME,
            "ROOTSTOCK_ENGINE_ENDPOINT": self.engine_endpoint,
            "ROOTSTOCK_ENGINE_REDIS_URL": self.redis.url,
            "ROOTSTOCK_ENGINE_DATA_DIR": str(self.folder),
            "ROOTSTOCK_ENGINE_NULL_STEP_SECONDS": "0.004",
            "ROOTSTOCK_ENGINE_NULL_DEPTH": str(self.num_engines % 2),
            "ROOTSTOCK_DEVICE_NUM_BLOCKS": "220",
            "ROOTSTOCK_API_ENGINE_ENDPOINT": self.engine_endpoint,
            "ROOTSTOCK_API_BASE_PATH": str(BASE),
            "ROOTSTOCK_API_BASE_NAME": BASE_NAME,
            "ROOTSTOCK_API_REDIS_URL": self.redis.url,
            "ROOTSTOCK_API_LISTEN_FD": str(self.listener.fileno()),
            "ROOTSTOCK_API_NAME": name,
            "ROOTSTOCK_API_DRAIN_TIMEOUT": "3",
            "ROOTSTOCK_DB_URL": serving_url(self.postgres.url),
            "ROOTSTOCK_STORAGE_URL": f"file://{self.folder}/objects",
            "ROOTSTOCK_TENANTS_KEY_SECRET": SECRET,
            "ROOTSTOCK_WORKER_REDIS_URL": self.redis.url,
            "ROOTSTOCK_WORKER_METER_INTERVAL": "0.25",
            "ROOTSTOCK_WORKER_METER_STALE_AFTER": "1.5",
        }

    async def start(self, name: str, point: Point | None = None) -> Process:
        """`engine`, or one of the others: dying at `point`, if there is one."""
        kind = name.partition("-")[0]
        if kind == "engine":
            self.num_engines += 1
        order = Order(
            kind,
            self.environment(name),
            str(self.folder / f"{kind}.log"),
            str(self.witnesses / f"{self.num_engines:04d}") if kind == "engine" else "",
            point,
        )
        return await self.nursery.fork(order)


@asynccontextmanager
async def open_site(folder: Path) -> AsyncIterator[Site]:
    """In `folder`, an empty one with a short path. Everything is ended with the block."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    nursery = Nursery(folder / "nursery.log", listener)
    stores = Store("redis", folder), Store("postgres", folder)
    site = Site(folder, *stores, nursery, listener)
    try:
        await asyncio.gather(*(one.open() for one in stores), nursery.open())
        schema.upgrade(site.postgres.url, serving_url(site.postgres.url))
        site.callers = await _open_accounts(site)
        yield site
    finally:
        await nursery.close()
        listener.close()
        for store in stores:
            await store.close()


async def _open_accounts(site: Site) -> list[Caller]:
    database = Database(serving_url(site.postgres.url))
    client = redis.asyncio.Redis.from_url(site.redis.url)
    callers = []
    try:
        await PriceService(database, client).add(input=3_000_000, cached_input=1_000_000, output=7_000_000)
        accounts = account_services(database, client, SECRET)
        for number in range(NUM_TENANTS):
            tenant = await accounts.tenants.create_tenant(f"tenant-{number}")
            key = await accounts.keys.create(tenant.id, "main", OPERATOR)
            admin = await accounts.keys.create(tenant.id, "admin", OPERATOR, kind="admin")
            for metric, amount in LIMITS.items():
                few = metric is Metric.CONCURRENT_REQUESTS and number == NUM_TENANTS - 1
                limit = Limit("tenant", tenant.id, "", metric, 2 if few else amount)
                await accounts.limits.set(tenant.id, OPERATOR, limit)
            await AdapterService(database, client, Bases(BASE_NAME)).register_version(
                tenant.id, "pirate", AdapterRef(f"{number:064x}", 8), base_digest="0" * 64
            )
            models = [BASE_NAME, f"{BASE_NAME}:pirate"]
            callers.append(Caller(tenant.id, key.plaintext, admin.plaintext, models))
    finally:
        await client.aclose()
        await database.close()
    return callers


def told(callers: list[Caller]) -> bytes:
    """As the load reads them."""
    return json.dumps([asdict(caller) for caller in callers]).encode()
