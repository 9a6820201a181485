"""The application over stand-ins: in process, and behind a real uvicorn in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import redis.asyncio
import uvicorn

from api.app import create_app
from api.connections import connections_with
from api.pools import BasePool, Pools
from api.request_reader import HEAD_TIMEOUT
from api.services import RequestLimits, Services
from db.session import Database
from sla.recorder import SlaRecorder
from tests.api.fakes import KEY, FakeEngine, FakeKeys, FakeModels, FakePrices, FakeQuotas, FakeUsage
from tests.support.databases import SharedDatabase
from tests.support.documented import DISAGREEMENTS, Documented
from tests.support.passwords import cheap_passwords
from tests.support.text_base import write_base
from tests.support.waiting import until
from tokenization.codec import TextCodec

if TYPE_CHECKING:
    from tests.api.everything import Everything


@pytest.fixture(scope="session")
def base_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def codec(base_dir: Path) -> TextCodec:
    return TextCodec.load(base_dir)


@pytest.fixture(scope="package", autouse=True)
def cheap_users() -> Iterator[None]:
    """What passwords cost is tested where they are made."""
    with cheap_passwords():
        yield


@pytest.fixture(autouse=True)
def as_documented() -> Iterator[None]:
    """Every response of the test is one that the OpenAPI document says."""
    DISAGREEMENTS.clear()
    yield
    assert DISAGREEMENTS == []


LIMITS = RequestLimits(max_body_bytes=1024 * 1024, body_timeout=20, ping_interval=0.1)


@dataclass
class World:
    """What a test may look at and change."""

    engine: FakeEngine
    keys: FakeKeys
    models: FakeModels
    usage: FakeUsage
    quotas: FakeQuotas
    services: Services


def build(text: TextCodec, limits: RequestLimits | None = None, **parts: Any) -> World:
    """`parts`: services that are not stand-ins."""
    engine, keys, models, usage = FakeEngine(text), FakeKeys(), FakeModels(), FakeUsage()
    quotas = FakeQuotas()
    of_pool = {name: parts.pop(name) for name in ("grammars", "tool_format", "reasoning") if name in parts}
    services = Services(
        pools=Pools(BasePool("sapling", engine, text, **of_pool)),  # type: ignore[arg-type]
        keys=keys,  # type: ignore[arg-type]
        models=models,  # type: ignore[arg-type]
        usage=usage,  # type: ignore[arg-type]
        **{
            "files": None,
            "uploads": None,
            "quotas": quotas,
            "prices": FakePrices(),
            "sla_reports": None,
            "sla": SlaRecorder(None),
        }
        | parts,
        limits=limits or LIMITS,
    )
    return World(engine, keys, models, usage, quotas, services)


@pytest.fixture
def world(codec: TextCodec) -> World:
    return build(codec)


@pytest.fixture
async def client(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """In process: no sockets, no disconnects."""
    transport = httpx.ASGITransport(Documented(create_app(world.services)), raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as opened:
        yield opened


@pytest.fixture
async def both(
    codec: TextCodec,
    shared_database: SharedDatabase,
    database: Database,
    redis_client: redis.asyncio.Redis,
    redis_url: str,
    tmp_path: Path,
) -> AsyncIterator[Everything]:
    """Two tenants that have one of everything, over real stores."""
    from tests.api.everything import open_everything  # here: it is built on what stands above

    async with open_everything(codec, shared_database, database, redis_client, redis_url, tmp_path) as opened:
        yield opened


@dataclass
class Served:
    """The application behind a real server."""

    world: World
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@pytest.fixture
def served(codec: TextCodec) -> Iterator[Served]:
    """The same over real sockets, on an event loop of its own thread."""
    with serving(build(codec)) as running:
        yield running


@contextmanager
def serving(
    world: World,
    close: Callable[[], Awaitable[None]] | None = None,
    start: Callable[[], Awaitable[None]] | None = None,
    head_timeout: float = HEAD_TIMEOUT,
    keep_alive: int = 5,
) -> Iterator[Served]:
    """The application behind uvicorn, as the process's main runs it, in a thread; `start` and `close` run on
    its loop before and after.
    """
    application = Documented(create_app(world.services))
    application.load()  # takes a second, which no connection should wait for
    config = uvicorn.Config(
        application,
        host="127.0.0.1",
        port=0,
        http=connections_with(60.0, head_timeout),
        timeout_keep_alive=keep_alive,
        loop="uvloop",
        lifespan="off",
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)

    async def run() -> None:
        if start is not None:
            await start()
        await server.serve()
        if close is not None:
            await close()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    try:
        yield Served(world, host, port)
    finally:
        server.should_exit = True
        thread.join(10)


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> float:
    """Poll from outside the event loop; how long it took."""
    return until(condition, seconds)
