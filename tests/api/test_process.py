"""The real API process, wired to a real PostgreSQL, Redis and (null) engine process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import psycopg
import pytest
import redis.asyncio
from openai.types.chat import ChatCompletionChunk
from sqlalchemy import make_url, text

from adapters.bases import Bases
from adapters.service import AdapterService
from billing.metering import JournalMeter
from db.schema import expected_revision
from db.session import EVERY_TENANT, Database
from engine.protocol import AdapterRef
from tenants.actors import OPERATOR
from tenants.key_service import KeyService
from tenants.service import TenantService
from tests.api.conftest import wait_until
from tests.support.nursery import Forked
from tests.support.ports import free_port
from tests.support.servers import start_api, start_engine

SECRET = "a secret of at least thirty-two characters"
HELLO = [{"role": "user", "content": "Hello there"}]


@dataclass
class Processes:
    """Engine and API as a supervisor would start them."""

    folder: Path
    base_dir: Path
    database_url: str
    redis_url: str
    port: int
    started: list[Forked] = field(default_factory=list)
    clients: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def start(self, module: str, *arguments: str, **settings: str) -> Forked:
        environment = {
            "ROOTSTOCK_ENGINE_BASE": str(self.base_dir),
            "ROOTSTOCK_ENGINE_BASE_NAME": "sapling",
            "ROOTSTOCK_ENGINE_ENDPOINT": f"ipc://{self.folder}/e.sock",
            "ROOTSTOCK_ENGINE_REDIS_URL": self.redis_url,
            "ROOTSTOCK_ENGINE_DATA_DIR": str(self.folder),
            "ROOTSTOCK_ENGINE_CONTEXT_LENGTH": "2048",
            "ROOTSTOCK_API_ENGINE_ENDPOINT": f"ipc://{self.folder}/e.sock",
            "ROOTSTOCK_API_BASE_PATH": str(self.base_dir),
            "ROOTSTOCK_API_BASE_NAME": "sapling",
            "ROOTSTOCK_API_REDIS_URL": self.redis_url,
            "ROOTSTOCK_API_PORT": str(self.port),
            "ROOTSTOCK_DB_URL": self.database_url,
            "ROOTSTOCK_STORAGE_URL": f"file://{self.folder}/objects",
            "ROOTSTOCK_TENANTS_KEY_SECRET": SECRET,
        }
        everything = {**os.environ, **environment, **settings}
        log = self.folder / "log"
        if module == "api.main":
            process = start_api(log, everything)
        else:
            process = start_engine(log, everything, arguments)
        self.started.append(process)
        return process

    def client(self, key: str, port: int | None = None, **options: Any) -> openai.OpenAI:
        """The stock client, closed with the processes."""
        url = f"http://127.0.0.1:{port or self.port}/v1"
        return self.clients.enter_context(openai.OpenAI(base_url=url, api_key=key, max_retries=0, **options))

    def wait_for(self, path: str, status: int) -> httpx.Response:
        end = time.monotonic() + 150
        while True:
            try:
                response = httpx.get(f"{self.url}{path}")
                if response.status_code == status:
                    return response
            except httpx.TransportError:
                pass
            assert time.monotonic() < end, self.log
            time.sleep(0.05)


@pytest.fixture
def processes(
    servers_dir: Path, base_dir: Path, database_url: str, redis_url: str, tmp_path: Path
) -> Iterator[Processes]:
    folder = servers_dir / f"api-{os.getpid()}-{time.monotonic_ns() % 10**6}"
    folder.mkdir()
    made = Processes(folder, base_dir, database_url, redis_url, free_port())
    with made.clients:
        yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
            process.wait(10)


@dataclass
class Account:
    key: str
    admin_key: str


@pytest.fixture
async def account(database: Database, redis_client: redis.asyncio.Redis) -> Account:
    tenant = await TenantService(database, redis_client).create_tenant("acme")
    keys = KeyService(database, redis_client, SECRET)
    key = await keys.create(tenant.id, "main", OPERATOR)
    admin = await keys.create(tenant.id, "admin", OPERATOR, kind="admin")
    adapters = AdapterService(database, redis_client, Bases("sapling"))
    await adapters.register_version(tenant.id, "pirate", AdapterRef("d" * 64, 8), base_digest="0" * 64)
    return Account(key.plaintext, admin.plaintext)


async def test_the_service_from_start_to_drain(processes: Processes, account: Account) -> None:
    api = processes.start("api.main")
    assert processes.wait_for("/livez", 200).json() == {"status": "ok"}
    waiting = processes.wait_for("/readyz", 503)
    assert waiting.json()["not_ready"] == ["engine"], processes.log
    engine = processes.start("engine.main", "--null", ROOTSTOCK_ENGINE_NULL_STEP_SECONDS="0.01")
    processes.wait_for("/readyz", 200)
    sdk = processes.client(account.key)
    assert [model.id for model in sdk.models.list()] == ["sapling", "sapling:pirate"]
    first = sdk.chat.completions.create(model="sapling:pirate", messages=HELLO, max_tokens=20, seed=1)
    assert first.model == "sapling:pirate@1"
    assert first.usage.completion_tokens == 20
    assert first.system_fingerprint.endswith("_" + "d" * 10)
    again = sdk.chat.completions.create(
        model="sapling:pirate@1", messages=HELLO, max_tokens=20, seed=1, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in again)
    assert text == first.choices[0].message.content
    base = sdk.chat.completions.create(model="sapling", messages=HELLO, max_tokens=20, seed=1)
    assert base.choices[0].message.content != text
    with pytest.raises(openai.NotFoundError):
        sdk.chat.completions.create(model="sapling:other", messages=HELLO)
    with pytest.raises(openai.AuthenticationError):
        sdk.with_options(api_key=account.key[:-1] + ("x" if account.key[-1] != "x" else "y")).models.list()
    admin = processes.client(account.key, admin_api_key=account.admin_key)
    page = admin.admin.organization.usage.completions(start_time=int(time.time()) - 60, bucket_width="1m")
    assert page.object == "page"
    processes.wait_for("/console/sign-in", 200)

    _flood_with_headers(api.pid, processes.port)

    # A client that leaves stops the engine's work on its request.
    long = sdk.chat.completions.create(
        model="sapling", messages=HELLO, stream=True, max_tokens=1500, extra_body={"ignore_eos": True}
    )
    next(iter(long))
    long.close()
    aborted = 'rootstock_engine_aborted_total{replica="engine-0"} 1.0'
    wait_until(lambda: aborted in httpx.get(f"{processes.url}/metrics").text)

    # SIGTERM: nothing new is taken, what is open is finished, the exit is in order.
    open_stream = iter(
        sdk.chat.completions.create(model="sapling", messages=HELLO, stream=True, max_tokens=60)
    )
    pieces = [next(open_stream)]
    api.send_signal(signal.SIGTERM)
    wait_until(lambda: "draining" in processes.log)

    def is_refused() -> bool:
        try:
            sdk.models.list()
        except openai.APIConnectionError:
            return True
        return False

    wait_until(is_refused)
    pieces += list(open_stream)
    assert pieces[-1].choices[0].finish_reason == "length"
    assert api.wait(30) == 0
    engine.send_signal(signal.SIGTERM)
    assert engine.wait(30) == 0
    assert account.key not in processes.log
    assert account.key[-20:] not in processes.log


def _flood_with_headers(pid: int, port: int) -> None:
    """Headers that never end leave no trace in the process's memory."""
    before = _resident_bytes(pid)
    with contextlib.ExitStack() as opened:
        for _ in range(64):
            client = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            with contextlib.suppress(ConnectionError):
                client.sendall(b"GET / HTTP/1.1\r\nx-filler: " + b"x" * 2_000_000)
                assert client.recv(65536).startswith(b"HTTP/1.1 431 ")
        assert _resident_bytes(pid) - before < 32 * 1024 * 1024


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_killed_engine_and_a_drain_that_lasts_too_long(
    processes: Processes, account: Account
) -> None:
    api = processes.start("api.main", ROOTSTOCK_API_DRAIN_TIMEOUT="1")
    engine = processes.start("engine.main", "--null", ROOTSTOCK_ENGINE_NULL_STEP_SECONDS="0.01")
    processes.wait_for("/readyz", 200)
    sdk = processes.client(account.key)

    def long_stream() -> Iterator[ChatCompletionChunk]:
        stream = sdk.chat.completions.create(model="sapling", messages=HELLO, stream=True, max_tokens=1500)
        next(iter(stream))
        return iter(stream)

    stream = long_stream()
    engine.kill()
    with pytest.raises(openai.APIError) as broken:
        list(stream)
    assert broken.value.code == "engine_unavailable"
    assert processes.wait_for("/readyz", 503).json()["not_ready"] == ["engine"]
    with pytest.raises(openai.InternalServerError) as absent:
        sdk.chat.completions.create(model="sapling", messages=HELLO)
    assert absent.value.status_code == 503

    processes.start("engine.main", "--null", ROOTSTOCK_ENGINE_NULL_STEP_SECONDS="0.05")
    processes.wait_for("/readyz", 200)
    stream = long_stream()
    began = time.monotonic()
    api.send_signal(signal.SIGTERM)
    assert api.wait(30) == 0
    assert 0.9 < time.monotonic() - began < 15
    # What the client had is not passed off as a whole answer.
    with pytest.raises((openai.APIError, httpx2.TransportError)):
        list(stream)


def test_a_missing_tokenizer_is_a_clear_failure(processes: Processes) -> None:
    api = processes.start("api.main", ROOTSTOCK_API_BASE_PATH=str(processes.folder))
    assert api.wait(60) == 1
    assert "has no tokenizer.json" in processes.log


def test_it_refuses_to_start_on_an_empty_schema(processes: Processes) -> None:
    empty = make_url(processes.database_url).set(database="postgres").render_as_string(hide_password=False)
    api = processes.start("api.main", ROOTSTOCK_DB_URL=empty)
    assert api.wait(60) == 1
    expected = f"the database schema is at no revision, this release needs {expected_revision()}"
    assert f"{expected}: run `rootstock migrate`" in processes.log
    assert "Traceback" not in processes.log


def test_a_schema_that_changes_underneath_is_not_ready(processes: Processes, owner_url: str) -> None:
    """As when the database is restored from another release's backup."""
    processes.start("api.main")
    assert processes.wait_for("/readyz", 503).json()["not_ready"] == ["engine"]

    def stamp(revision: str) -> None:
        plain = make_url(owner_url).set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(plain) as connection:
            connection.execute("UPDATE alembic_version SET version_num = %s", [revision])

    def schema_check() -> str:
        return str(httpx.get(f"{processes.url}/readyz").json()["checks"]["schema"])

    stamp("0001")
    reason = (
        f"the database schema is at 0001, this release needs {expected_revision()}: run `rootstock migrate`"
    )
    assert schema_check() == reason
    assert schema_check() == reason
    assert processes.log.count(reason) == 1, "logged once, not at every probe"
    stamp(expected_revision())
    assert schema_check() == "ok"


async def test_a_background_response_survives_its_process(
    processes: Processes, account: Account, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    """`kill -9` of the API process that generates it: another one does, and the ledger has it once."""
    processes.start("engine.main", "--null", ROOTSTOCK_ENGINE_NULL_STEP_SECONDS="0.02")
    other_port = free_port()
    by_name = {
        "first": processes.start("api.main", ROOTSTOCK_API_NAME="first"),
        "second": processes.start(
            "api.main", ROOTSTOCK_API_NAME="second", ROOTSTOCK_API_PORT=str(other_port)
        ),
    }
    processes.wait_for("/readyz", 200)
    wait_until(lambda: _answers(f"http://127.0.0.1:{other_port}/readyz"), 120)
    sdks = {
        name: processes.client(account.key, port)
        for name, port in (("first", processes.port), ("second", other_port))
    }
    made = sdks["first"].responses.create(
        model="sapling", input="Hello there", background=True, max_output_tokens=150
    )
    claimed = text("SELECT lease_owner FROM stored_responses WHERE id = :id AND status = 'in_progress'")
    owner = None
    for _ in range(600):
        async with database.read(EVERY_TENANT) as session:
            owner = (await session.execute(claimed, {"id": made.id})).scalar_one_or_none()
        if owner is not None:
            break
        await asyncio.sleep(0.05)
    assert owner is not None, processes.log
    await asyncio.sleep(0.3)  # some tokens are generated
    name = owner.partition("-")[0]
    by_name[name].send_signal(signal.SIGKILL)
    alive = sdks["second" if name == "first" else "first"]
    assert alive.responses.retrieve(made.id).status == "in_progress"
    await asyncio.to_thread(wait_until, lambda: alive.responses.retrieve(made.id).status == "incomplete", 120)
    done = alive.responses.retrieve(made.id)
    assert done.usage is not None
    assert (done.usage.output_tokens, done.incomplete_details.reason) == (150, "max_output_tokens")
    meter = JournalMeter(database, redis_client, "meter")
    for _ in range(100):
        await meter.drain()
        async with database.read(EVERY_TENANT) as session:
            query = text("SELECT request_id, endpoint, completion_tokens FROM usage_records")
            rows = (await session.execute(query)).all()
        if rows and rows[0].completion_tokens == 150:
            break
        await asyncio.sleep(0.1)
    assert [tuple(row) for row in rows] == [(made.id, "responses", 150)]
    async with database.read(EVERY_TENANT) as session:
        fence = (await session.execute(text("SELECT fence FROM stored_responses"))).scalar_one()
    assert fence == 2


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False
