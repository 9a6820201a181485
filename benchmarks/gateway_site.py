"""Runs a whole service around a null engine, with the accounts of a large one, for `benchmarks.gateway`.

Starts and stops private servers and processes, pins them to cores, and inserts the rows of ten thousand
tenants and a hundred thousand keys.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psycopg
from sqlalchemy import make_url

from cli.local.postgres import serving_url, start_postgres
from cli.local.redis import start_redis
from db import schema
from db.base import new_id
from tenants.keys import KeyHasher, generate
from tenants.models import STANDARD_PLAN

ROOT = Path(__file__).resolve().parent.parent
BASE = ROOT / "examples/sapling/weights/base"
BASE_NAME = "sapling"
NUM_TENANTS = 10_000
NUM_KEYS = 100_000
LIMITS = {
    "requests_per_minute": 100_000,
    "tokens_per_minute": 100_000_000,
    "concurrent_requests": 10_000,
    "spend_per_month": 1_000_000_000_000,
}
"""Limits of every tenant: ample, so that every request is counted and none is rejected."""
START_S = 90.0


class DidNotStart(Exception):
    """A process is not there; the message has the end of its log."""


@dataclass(frozen=True)
class Cores:
    """Where processes run: the one that is measured by itself where there are cores enough."""

    measured: frozenset[int]
    others: frozenset[int]
    each: int = 1
    """Cores of a measured process: one runs Python, a second its network's thread and interrupts."""

    @classmethod
    def shared_out(cls, num_measured: int = 1) -> Cores:
        """Two cores for each measured process where that leaves as many for the rest, else one; one for all
        of them where that leaves none.
        """
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) == 1:
            return cls(frozenset(usable), frozenset(usable))
        each = 2 if 4 * num_measured <= len(usable) else 1
        first = each * num_measured if each * num_measured < len(usable) else 1
        return cls(frozenset(usable[:first]), frozenset(usable[first:]), each)

    def of_measured(self, number: int) -> frozenset[int]:
        """That process's own."""
        measured = sorted(self.measured)
        first = self.each * number % len(measured)
        return frozenset(measured[first : first + self.each])

    def described(self) -> dict[str, str]:
        each = "a core" if self.each == 1 else f"{self.each} cores"
        return {
            "measured processes": f"pinned to {each} each: {_listed(self.measured)}",
            "everything else (traffic, engine, Redis, PostgreSQL, worker)": f"core {_listed(self.others)}",
        }


def _listed(cores: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(cores)))


@dataclass
class Site:
    """The processes, and what it takes to call them."""

    folder: Path
    cores: Cores
    urls: list[str]
    """URLs of the API's processes."""
    redis_url: str
    db_url: str
    owner_url: str
    keys: list[str]
    """One of each tenant first, then the others."""
    environment: Mapping[str, str]
    apis: list[subprocess.Popen[bytes]] = field(default_factory=list)
    engines: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """One for each of the API's processes, in their order."""
    worker: subprocess.Popen[bytes] | None = None
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """URL of the first of the API's processes."""
        return self.urls[0]

    @property
    def engine_endpoints(self) -> list[str]:
        return [self.engine_endpoint(number) for number in range(len(self.urls))]

    def engine_endpoint(self, number: int) -> str:
        return f"ipc://{self.folder}/engine-{number}.sock"

    def start(
        self, *command: str, cores: frozenset[int] | None = None, **settings: str
    ) -> subprocess.Popen[bytes]:
        """A process of ours, on these cores or the unmeasured ones; its output goes to the site's log."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, **self.environment, **settings},
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        pin(process, self.cores.others if cores is None else cores)
        self.started.append(process)
        return process

    def start_engines(self, step_seconds: float, *, has_model: bool = False, **settings: str) -> None:
        """In place of those that run, if any; returns when the API has found them.

        `has_model`: they generate with the model, and take as long as it does.
        """
        for engine in self.engines:
            stop(engine)
        settings["ROOTSTOCK_ENGINE_NULL_STEP_SECONDS"] = str(step_seconds)
        self.engines = [
            self.start(
                *("-m", "engine.main", *(() if has_model else ("--null",))),
                cores=None,
                ROOTSTOCK_ENGINE_ENGINE_ID=f"engine-{number}",
                ROOTSTOCK_ENGINE_ENDPOINT=endpoint,
                **settings,
            )
            for number, endpoint in enumerate(self.engine_endpoints)
        ]
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Every process of the API that was started yet."""
        for url, process in zip(self.urls, self.apis, strict=False):
            wait_for(f"{url}/readyz", process, self.folder / "log")

    def api_cpu_seconds(self) -> float:
        return sum(cpu_seconds(process.pid) for process in self.apis)

    def warnings(self, most: int = 5) -> str:
        """The last that a process complained of."""
        lines = (self.folder / "log").read_text(errors="replace").splitlines()
        return "\n".join(
            [line for line in lines if '"level":"info"' not in line and "[info" not in line][-most:]
        )

    def count(self, query: str) -> int:
        """One number from the database."""
        url = make_url(self.owner_url).set(drivername="postgresql")
        with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
            row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])


@contextmanager
def running_site(folder: Path, api: Mapping[str, str] | None = None, num_apis: int = 1) -> Iterator[Site]:
    """Everything, ready to be asked; stopped at the end. Each process of the API has an engine of its own.

    Args:
        api: settings of the API's processes.
    """
    cores = Cores.shared_out(num_apis)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores.others)  # whatever is started inherits it
    with ExitStack() as opened:
        opened.callback(os.sched_setaffinity, 0, before)
        postgres = opened.enter_context(start_postgres(folder))
        redis = opened.enter_context(start_redis(folder))
        db_url = serving_url(postgres.url)
        schema.upgrade(postgres.url, db_url)
        secret = secrets.token_hex(32)
        keys = seed(postgres.url, secret)
        ports = [free_port() for _ in range(num_apis)]
        environment = settings(folder, redis.url, db_url, secret)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        site = Site(folder, cores, urls, redis.url, db_url, postgres.url, keys, environment)
        try:
            site.start_engines(0.0)
            site.worker = site.start("-m", "cli.main", "work", "--queues", "rootstock", "--nice", "10")
            for number, port in enumerate(ports):
                named = {
                    "ROOTSTOCK_API_NAME": f"api-{number}",
                    "ROOTSTOCK_API_PORT": str(port),
                    "ROOTSTOCK_API_ENGINE_ENDPOINT": site.engine_endpoint(number),
                }
                its = cores.of_measured(number)
                site.apis.append(site.start("-m", "api.main", cores=its, **named, **(api or {})))
            site.wait_until_ready()
            yield site
        finally:
            for process in reversed(site.started):
                stop(process)


def settings(folder: Path, redis_url: str, db_url: str, secret: str) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": "1",
        "ROOTSTOCK_ENGINE_BASE": str(BASE),
        "ROOTSTOCK_ENGINE_BASE_NAME": BASE_NAME,
        "ROOTSTOCK_ENGINE_REDIS_URL": redis_url,
        "ROOTSTOCK_ENGINE_DATA_DIR": str(folder),
        "ROOTSTOCK_API_BASE_PATH": str(BASE),
        "ROOTSTOCK_API_BASE_NAME": BASE_NAME,
        "ROOTSTOCK_API_REDIS_URL": redis_url,
        "ROOTSTOCK_DB_URL": db_url,
        "ROOTSTOCK_STORAGE_URL": f"file://{folder}/objects",
        "ROOTSTOCK_TENANTS_KEY_SECRET": secret,
        "ROOTSTOCK_WORKER_REDIS_URL": redis_url,
    }


def seed(owner_url: str, secret: str) -> list[str]:
    """Tenants with a project each, keys spread over them, a price; the keys' texts, a tenant's first ones
    first.
    """
    hasher = KeyHasher(secret)
    tenants = [new_id("tnt") for _ in range(NUM_TENANTS)]
    projects = [f"proj_{tenant.partition('_')[2]}" for tenant in tenants]
    keys = [generate("inference") for _ in range(NUM_KEYS)]
    url = make_url(owner_url).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        cursor = connection.cursor()
        with cursor.copy("COPY tenants (id, name, plan_id) FROM STDIN") as copy:
            for number, tenant in enumerate(tenants):
                copy.write_row((tenant, f"tenant-{number}", STANDARD_PLAN))
        with cursor.copy("COPY projects (id, tenant_id, name, is_default) FROM STDIN") as copy:
            for tenant, project in zip(tenants, projects, strict=True):
                copy.write_row((project, tenant, "Default", True))
        columns = "id, tenant_id, project_id, digest, prefix, name, kind"
        with cursor.copy(f"COPY api_keys ({columns}) FROM STDIN") as copy:
            copy.set_types(["text", "text", "text", "bytea", "text", "text", "text"])
            for number, key in enumerate(keys):
                owner = number % NUM_TENANTS
                fields = (hasher.digest(key.plaintext), key.prefix, f"key {number}", "inference")
                copy.write_row((f"key_{number:07d}", tenants[owner], projects[owner], *fields))
        cursor.execute(
            "UPDATE plans SET limits = %s WHERE id = %s", (psycopg.types.json.Jsonb(LIMITS), STANDARD_PLAN)
        )
        cursor.execute(
            "INSERT INTO prices (id, effective_from, input, cached_input, output) "
            "VALUES ('prc_1', now(), 3000000, 1000000, 7000000)"
        )
        connection.commit()
        connection.autocommit = True
        cursor.execute("ANALYZE")
    return [key.plaintext for key in keys]


def pin(process: subprocess.Popen[bytes], cores: frozenset[int]) -> None:
    os.sched_setaffinity(process.pid, cores)


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process with all its threads, so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class BusyCores:
    """Measures how busy cores are, with all processes counted, from its creation on."""

    def __init__(self, cores: Cores) -> None:
        self._groups = {"measured": cores.measured, "others": cores.others}
        self._before = _jiffies()

    def shares(self) -> dict[str, float]:
        """Of the measured process's core, and of what everything else is on: near 1, that is what waits."""
        now = _jiffies()
        shares = {}
        for name, cores in self._groups.items():
            busy, whole = (
                sum(now[core][which] - self._before[core][which] for core in cores) for which in (0, 1)
            )
            shares[name] = round(busy / max(whole, 1), 3)
        return shares


def _jiffies() -> dict[int, tuple[int, int]]:
    """(busy, in all) of each core since the machine started."""
    counted = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            spent = [int(field) for field in fields[:8]]  # what guests took is in the first two already
            counted[int(name[3:])] = (sum(spent) - spent[3] - spent[4], sum(spent))
    return counted


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def wait_for(url: str, process: subprocess.Popen[bytes] | None, log: Path, seconds: float = START_S) -> None:
    """Until `url` answers 200. Raises DidNotStart."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (process is None or process.poll() is None):
        try:
            if httpx.get(url, timeout=5, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise DidNotStart(f"{url} does not answer:\n{log.read_text(errors='replace')[-3000:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
