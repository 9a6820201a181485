"""Runs the service that `benchmarks.upgrade` upgrades, its parts apart, each of a given release.

Two engines, two API processes behind nginx with the configuration of `deploy/`, and a worker, as
`docs/install.md` installs them; stores and proxy stay the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import httpx
import psycopg
from sqlalchemy import make_url

from benchmarks.releases import Release
from benchmarks.upgrade_counts import Ledger
from cli.demo import SAPLING
from cli.local.postgres import serving_url, start_postgres
from cli.local.redis import start_redis
from cli.local.server import LocalServer
from cli.programs import CHECKOUT
from cli.supervisor import Event, Program, Supervisor

BASE_NAME = "sapling"
TENANT = "acme"
ENGINES, APIS, WORKERS = ("engine-0", "engine-1"), ("api-0", "api-1"), ("worker",)
START_S = 120.0
SETTLE_S = 60.0
DRAIN_S = 60
"""Longer than the longest answer of the traffic."""
_LOOK_S = 0.3
_COMMANDS = """
import json, sys
from cli.main import app
for words in json.load(sys.stdin):
    app(words, standalone_mode=False)
"""
"""Runs several of the operator's commands in one process: their imports take seconds."""
_NGINX = """
daemon off;
{user}
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/nginx-body;
    proxy_temp_path {folder}/nginx-proxy;
    fastcgi_temp_path {folder}/nginx-fastcgi;
    uwsgi_temp_path {folder}/nginx-uwsgi;
    scgi_temp_path {folder}/nginx-scgi;
    include {folder}/rootstock.conf;
}}
"""


class SiteFailed(Exception):
    """A part of the service is not there; the message says which."""


@dataclass
class Site:
    """The service. Nothing of Rootstock runs until `start` is called."""

    folder: Path
    redis: LocalServer
    postgres: LocalServer
    nginx: tuple[str, ...]
    """The command that starts it."""
    problems: list[str] = field(default_factory=list)
    """What processes did that they must not, such as not ending on SIGTERM."""
    has_traffic: bool = False
    """Whether requests are sent: a worker that starts is then waited for until it bills some."""

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(self._note)
        names = ("front", *APIS)
        self._ports = dict(zip(names, _free_ports(len(names)), strict=True))
        self._secret = os.urandom(32).hex()
        self._billed_before: dict[str, int] = {}
        self._http = httpx.Client(verify=False, trust_env=False, timeout=5)

    @property
    def url(self) -> str:
        """The address that clients use."""
        return f"http://127.0.0.1:{self._ports['front']}"

    # Commands -----------------------------------------------------------------------------------------------

    def migrate(self, release: Release) -> None:
        self._run(release, release.command("migrate"), ROOTSTOCK_DB_OWNER_URL=self.postgres.url)

    def set_up(self, release: Release, adapters: Sequence[str]) -> tuple[str, list[str]]:
        """Migrates an empty database and creates a tenant with sapling's `adapters`; engines have to run.
        Returns its key, and the names of its models.
        """
        folders = {name: str(SAPLING / "adapters" / name) for name in adapters}
        commands = [
            ["migrate"],
            ["price", "set", "--input", "150000", "--output", "600000"],
            ["tenant", "create", TENANT],
            *(["adapter", "add", TENANT, name, folder] for name, folder in folders.items()),
            ["key", "create", TENANT],
        ]
        command = (str(release.python), "-c", _COMMANDS)
        output = self._run(release, command, json.dumps(commands), ROOTSTOCK_DB_OWNER_URL=self.postgres.url)
        key = output.split()[-1]
        return key, [BASE_NAME, *(f"{BASE_NAME}:{name}" for name in adapters)]

    def reconcile(self, release: Release) -> list[str]:
        """Has the service compare its books; returns the report's lines unless they agree."""
        done = self._done(release, release.command("billing", "reconcile"))
        return done.stdout.splitlines() + done.stderr.splitlines() if done.returncode else []

    # The ledger ---------------------------------------------------------------------------------------------

    def ledger(self) -> Ledger:
        """Returns the requests that are in the ledger with their end. A request's row is unique there."""
        query = (
            "SELECT request_id, prompt_tokens, completion_tokens FROM usage_records "
            "WHERE finish_reason IS NOT NULL"
        )
        return {row[0]: (row[1], row[2]) for row in self._rows(query)}

    def num_billed(self) -> int:
        return int(self._rows("SELECT count(*) FROM usage_records")[0][0])

    def _rows(self, query: LiteralString) -> list[tuple[Any, ...]]:
        url = make_url(self.postgres.url).set(drivername="postgresql")
        with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
            return connection.execute(query).fetchall()

    async def settled(self, ids: set[str]) -> Ledger:
        """Returns the ledger once it has the end of all these requests, or has lacked some for too long."""
        end = time.monotonic() + SETTLE_S
        while True:
            ledger = await asyncio.to_thread(self.ledger)
            if ids <= ledger.keys() or time.monotonic() > end:
                return ledger
            await asyncio.sleep(0.3)

    # Processes ----------------------------------------------------------------------------------------------

    async def start(self, release: Release, *names: str) -> None:
        """Starts processes of a release, and waits until they do their work. Raises SiteFailed."""
        for name in names:
            self._billed_before[name] = await asyncio.to_thread(self.num_billed) if name in WORKERS else 0
            await self.supervisor.start(self._program(release, name))
        for name in names:
            await self._until(lambda name=name: self._serves(name), name)  # type: ignore[misc]

    async def replace(self, release: Release, name: str) -> float:
        """Stops a process as its supervisor would, and starts the one of `release` in its place. Returns the
        seconds that took. Raises SiteFailed.
        """
        began = time.monotonic()
        await self.supervisor.stop(name)
        await self.start(release, name)
        return time.monotonic() - began

    async def close(self) -> None:
        """Stops all processes of Rootstock, and nginx."""
        await self.supervisor.stop_all()
        self._http.close()

    async def start_front(self) -> None:
        environment = dict(os.environ)
        await self.supervisor.start(Program("nginx", self.nginx, environment, self.folder / "nginx.log"))
        await self._until(lambda: self._get(f"{self.url}/readyz") is not None, "nginx")

    def _program(self, release: Release, name: str) -> Program:
        command = {
            "engine": ("serve-engine",),
            "api": ("serve-api",),
            "worker": ("work", "--queues", "rootstock"),
        }
        environment = release.environment({**os.environ, **self._settings(), **self._own_settings(name)})
        return Program(
            name=name,
            argv=release.command(*command[name.partition("-")[0]]),
            env=environment,
            log=self.folder / f"{name}.log",
            grace_s=DRAIN_S + 20,
            cwd=release.folder or Path("/"),
        )

    def _serves(self, name: str) -> bool:
        """Returns whether a process does its work; an engine, as far as each API process sees."""
        if name in APIS:
            return self._get(f"{self._own_url(name)}/readyz") is not None
        if name in ENGINES:
            running = [api for api in APIS if api in self.supervisor.children]
            line = f'rootstock_engine_up{{replica="{name}"}} 1.0'
            if not running:
                return (self.folder / "engine" / name / "serving").exists()
            return all(line in (self._get(f"{self._own_url(api)}/metrics") or "") for api in running)
        # A worker of no traffic has nothing to show: it is alive.
        return not self.has_traffic or self.num_billed() > self._billed_before[name]

    def _get(self, url: str) -> str | None:
        """Returns the text of an answer with the status 200; None without."""
        try:
            answer = self._http.get(url, headers={"connection": "close"})
        except httpx.HTTPError:
            return None
        return answer.text if answer.status_code == 200 else None

    def _own_url(self, api: str) -> str:
        return f"http://127.0.0.1:{self._ports[api]}"

    async def _until(self, holds: Callable[[], bool], name: str) -> None:
        end = time.monotonic() + START_S
        child = self.supervisor.children[name]
        failed = asyncio.create_task(child.failed())
        try:
            while not await asyncio.to_thread(holds):
                if failed.done():
                    raise SiteFailed(f"{failed.exception()}; see {child.program.log}")
                if time.monotonic() > end:
                    raise SiteFailed(f"{name} does not serve after {START_S:g} s; see {child.program.log}")
                await asyncio.sleep(_LOOK_S)
        finally:
            failed.cancel()
            await asyncio.gather(failed, return_exceptions=True)

    def _note(self, event: Event) -> None:
        self.problems.append(f"{event.child} {event.kind}: {event.detail}")

    # Settings -----------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, str]:
        """Returns the settings that all processes share."""
        redis, artifacts = self.redis.url, str(self.folder / "artifacts")
        endpoints = ",".join(self._endpoint(name) for name in ENGINES)
        return {
            "OMP_NUM_THREADS": "1",
            "ROOTSTOCK_DB_URL": serving_url(self.postgres.url),
            "ROOTSTOCK_REDIS_URL": redis,
            "ROOTSTOCK_API_REDIS_URL": redis,
            "ROOTSTOCK_ENGINE_REDIS_URL": redis,
            "ROOTSTOCK_WORKER_REDIS_URL": redis,
            "ROOTSTOCK_TENANTS_KEY_SECRET": self._secret,
            "ROOTSTOCK_STORAGE_URL": f"file://{self.folder}/objects",
            "ROOTSTOCK_ENGINE_BASE": str(SAPLING / "base"),
            "ROOTSTOCK_ENGINE_BASE_NAME": BASE_NAME,
            "ROOTSTOCK_API_BASE_PATH": str(SAPLING / "base"),
            "ROOTSTOCK_API_BASE_NAME": BASE_NAME,
            "ROOTSTOCK_JOBS_BASE_PATH": str(SAPLING / "base"),
            "ROOTSTOCK_JOBS_BASE_NAME": BASE_NAME,
            "ROOTSTOCK_DEVICE_QUANTIZATION": "none",
            "ROOTSTOCK_DEVICE_KV_BYTES": str(64 << 20),
            "ROOTSTOCK_API_ENGINE_ENDPOINT": endpoints,
            "ROOTSTOCK_JOBS_ENGINE_ENDPOINT": endpoints,
            "ROOTSTOCK_WORKER_ENGINE_ENDPOINTS": endpoints,
            "ROOTSTOCK_ENGINE_DATA_DIR": str(self.folder),
            "ROOTSTOCK_ENGINE_ARTIFACTS_DIR": artifacts,
            "ROOTSTOCK_JOBS_ARTIFACTS_DIR": artifacts,
            "ROOTSTOCK_ENGINE_DRAIN_SECONDS": str(DRAIN_S),
            "ROOTSTOCK_API_DRAIN_TIMEOUT": str(DRAIN_S),
            "ROOTSTOCK_API_FORWARDED_ALLOW_IPS": "127.0.0.1",
        }

    def _own_settings(self, name: str) -> dict[str, str]:
        if name in ENGINES:
            return {
                "ROOTSTOCK_ENGINE_ENGINE_ID": name,
                "ROOTSTOCK_ENGINE_ENDPOINT": self._endpoint(name),
            }
        if name in APIS:
            return {"ROOTSTOCK_API_NAME": name, "ROOTSTOCK_API_PORT": str(self._ports[name])}
        return {}

    def _endpoint(self, engine: str) -> str:
        return f"ipc://{self.folder}/{engine}.sock"

    def write_front(self) -> None:
        """Writes the configuration of `deploy/nginx.conf` for this site, without TLS."""
        shipped = (CHECKOUT / "deploy" / "nginx.conf").read_text()
        upstream, _, *served = re.split(r"(?m)^server \{\n", shipped)
        text = upstream + "server {\n" + "".join(served)
        text = re.sub(r"(?m)^ *(ssl_|listen \[::\]).*\n", "", text)
        for before, after in (
            ("listen 443 ssl http2;", f"listen 127.0.0.1:{self._ports['front']};"),
            ("127.0.0.1:8001", f"127.0.0.1:{self._ports['api-0']}"),
            ("127.0.0.1:8002", f"127.0.0.1:{self._ports['api-1']}"),
        ):
            if before not in text:
                raise SiteFailed(f"deploy/nginx.conf has no {before!r} any more")
            text = text.replace(before, after)
        (self.folder / "rootstock.conf").write_text(text)
        user = "user root;" if os.geteuid() == 0 else ""
        (self.folder / "nginx.conf").write_text(_NGINX.format(folder=self.folder, user=user))

    def _run(self, release: Release, command: Sequence[str], given: str = "", **settings: str) -> str:
        """Returns the output of a command of the operator. Raises SiteFailed."""
        done = self._done(release, command, given, **settings)
        if done.returncode:
            raise SiteFailed(f"{' '.join(command[2:])} of {release.name}: {done.stderr[-2000:]}")
        return done.stdout

    def _done(
        self, release: Release, command: Sequence[str], given: str = "", **settings: str
    ) -> subprocess.CompletedProcess[str]:
        own = self._own_settings(ENGINES[0])  # the engine that adapters are packed for
        environment = release.environment({**os.environ, **self._settings(), **own, **settings})
        return subprocess.run(
            command,
            env=environment,
            cwd=release.folder or "/",
            input=given,
            capture_output=True,
            text=True,
        )


def nginx_program(option: str | None) -> str:
    """Returns the path of nginx. Raises SiteFailed where there is none."""
    found = option or shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if found is None:
        raise SiteFailed("there is no nginx on PATH: install it, or name it with --nginx")
    return found


@asynccontextmanager
async def open_site(folder: Path, nginx: Sequence[str]) -> AsyncIterator[Site]:
    """Opens a site in `folder`, an empty one with a short path; ends everything with the block."""
    command = (*nginx, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "nginx.log"))
    with start_redis(folder) as redis, start_postgres(folder) as postgres:
        site = Site(folder, redis, postgres, command)
        site.write_front()
        try:
            yield site
        finally:
            await site.close()


def _free_ports(count: int) -> list[int]:
    """Returns ports that are free: all are bound before one is given back."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
