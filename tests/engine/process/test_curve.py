"""Connections over TCP: encrypted, and only for clients whose key the engine knows."""

from __future__ import annotations

import asyncio
import queue
import select
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import redis
import zmq
from pydantic import ValidationError

from engine.client import EngineClient
from engine.protocol import EngineInfo, EngineStats, Hello
from engine.registry import REGISTRY, RegistryAddress, read_registry
from engine.settings import ClusterSettings, EngineSettings
from engine.transport.curve import Address, KeyPair, ServerKeys
from engine.transport.server_socket import Delivery, Transport
from tests.engine.process.conftest import Connect
from tests.engine.process.engines import EngineProcess, engine_process, read, submission, tokens_of, until

INFO = EngineInfo("engine-0", "i", "base", "", "none", "null", 100, 99, 100, "test")
STATS = EngineStats("engine-0", "i")
CLIENTS = KeyPair.make()
encode = msgspec.msgpack.Encoder().encode


class Door:
    """A transport that knows one client key, and sockets that knock at it."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self.keys = ServerKeys(KeyPair.make(), frozenset({CLIENTS.public}))
        self.transport = Transport("tcp://127.0.0.1:*", self.inbox.put, lambda: STATS, self.keys)
        self.transport.announce(INFO)
        self.context = zmq.Context()

    def knock(self, server: bytes | None, client: KeyPair | None) -> bool:
        """Says hello with these keys. Returns whether anything is answered within half a second."""
        return self.is_answered(Address(self.transport.endpoint, server, client), "test")

    def is_answered(self, address: Address, name: str) -> bool:
        with self.context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            address.secure(dealer)
            dealer.connect(address.endpoint)
            dealer.send(encode(Hello(name)))
            return bool(dealer.poll(500))

    def close(self) -> None:
        self.context.destroy(linger=0)
        self.transport.close(linger=0.5)


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door()
    yield opened
    opened.close()


def test_only_a_known_key_is_answered(door: Door) -> None:
    server = door.keys.own.public
    assert not door.knock(server, KeyPair.make()), "a key that is not a client's"
    assert not door.knock(KeyPair.make().public, CLIENTS), "a client that takes it for another engine"
    assert not door.knock(None, None), "a client that does not encrypt"
    assert door.inbox.empty()
    assert not door.transport._peers
    assert door.knock(server, CLIENTS)


def test_bytes_changed_on_the_way_end_the_connection(door: Door) -> None:
    with Tamperer(door.transport.endpoint, from_byte=600) as middle:
        address = Address(middle.endpoint, door.keys.own.public, CLIENTS)
        assert not door.is_answered(address, "x" * 2000)
        assert middle.num_inverted > 1000
    assert not door.transport._peers, "no message of it was delivered"
    with Tamperer(door.transport.endpoint, from_byte=1 << 62) as middle:
        address = Address(middle.endpoint, door.keys.own.public, CLIENTS)
        assert door.is_answered(address, "x" * 2000), "it passes on what it does not change"


class Tamperer:
    """Passes bytes on to an endpoint, and inverts those that clients send from the given one on."""

    def __init__(self, endpoint: str, from_byte: int) -> None:
        self._to = int(endpoint.rpartition(":")[2])
        self._from_byte = from_byte
        self.num_inverted = 0

    def __enter__(self) -> Tamperer:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        """Serves one connection, until either side ends it."""
        near, _ = self._listener.accept()
        with near, socket.create_connection(("127.0.0.1", self._to)) as far:
            passed = 0
            while True:
                readable, _, _ = select.select((near, far), (), ())
                for source in readable:
                    data = source.recv(4096)
                    if not data:
                        return
                    if source is near:
                        kept = max(0, self._from_byte - passed)
                        passed += len(data)
                        self.num_inverted += len(data[kept:])
                        data = data[:kept] + bytes(byte ^ 0xFF for byte in data[kept:])
                    (far if source is near else near).sendall(data)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "clients.key"
    CLIENTS.write(path)
    return path


@pytest.fixture
def secured(folder: Path, redis_url: str) -> Iterator[EngineProcess]:
    keys = CLIENTS.public.hex()
    for process in engine_process(
        folder, redis_url, endpoint="tcp://127.0.0.1:0", client_keys=keys, host="localhost"
    ):
        process.start()
        yield process


async def registered(redis_url: str, secret: Path) -> tuple[str, ...]:
    address = RegistryAddress(redis_url, secret)
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        return tuple(address.endpoints_of(await read_registry(client)))


async def until_registered(redis_url: str, secret: Path) -> tuple[str, ...]:
    async with asyncio.timeout(30):
        while not (found := await registered(redis_url, secret)):  # noqa: ASYNC110 - another process's doing
            await asyncio.sleep(0.05)
    return found


async def test_an_engine_registers_serves_and_leaves(
    secured: EngineProcess, secret: Path, redis_url: str, connect: Connect
) -> None:
    found = await until_registered(redis_url, secret)
    (endpoint,) = found
    assert endpoint.startswith("tcp://localhost:")
    client = EngineClient(endpoint, "test")
    await client.start()
    try:
        async with asyncio.timeout(30):
            await client.wait_ready()
        assert len(tokens_of(await read(client.submit(submission("r", 20))))) == 20
        assert "secret" not in client.endpoint
    finally:
        await client.close()
    secured.signal(15)
    assert secured.wait() == 0
    assert await registered(redis_url, secret) == ()


async def test_a_killed_engine_is_listed_until_its_registration_expires(
    secured: EngineProcess, secret: Path, redis_url: str
) -> None:
    await until_registered(redis_url, secret)
    secured.kill()
    with redis.Redis.from_url(redis_url) as client:
        assert 0 < client.pttl(f"{REGISTRY}:engine-0") <= 10_000
        client.expire(f"{REGISTRY}:engine-0", 0)
    assert await registered(redis_url, secret) == ()


async def test_an_engine_registers_again_after_redis_lost_it(
    secured: EngineProcess, secret: Path, redis_url: str
) -> None:
    await until_registered(redis_url, secret)
    with redis.Redis.from_url(redis_url) as client:
        client.delete(REGISTRY, f"{REGISTRY}:engine-0")
    began = time.monotonic()
    await until_registered(redis_url, secret)
    assert time.monotonic() - began < 5


async def test_a_client_with_another_key_never_becomes_ready(
    secured: EngineProcess, secret: Path, redis_url: str, tmp_path: Path
) -> None:
    found = await until_registered(redis_url, secret)
    other = tmp_path / "other.key"
    KeyPair.make().write(other)
    client = EngineClient(found[0].replace(str(secret), str(other)), "stranger")
    await client.start()
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await client.wait_ready()
        assert not client.is_starting
    finally:
        await client.close()
    await until(lambda: "engine ready" in secured.read_log())
    assert "client connected" not in secured.read_log()


def test_a_secret_key_is_private_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "clients.key"
    first = KeyPair.make()
    first.write(path)
    KeyPair.make().write(path)
    assert KeyPair.read(path) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert first.secret.hex() not in repr(first)


def test_endpoints_with_keys_are_checked(tmp_path: Path) -> None:
    key = CLIENTS.public.hex()
    with pytest.raises(ValueError, match=r"give tcp://HOST:PORT\?key=HEX&secret=FILE"):
        EngineClient("tcp://a:1?key=00", "test")
    with pytest.raises(ValueError, match="64 hexadecimal digits, this has 2"):
        EngineClient("tcp://a:1?key=00&secret=/nowhere", "test")
    with pytest.raises(ValueError, match="copy the file"):
        EngineClient(f"tcp://a:1?key={key}&secret={tmp_path}/none", "test")
    short = tmp_path / "short.key"
    short.write_text("abc")
    with pytest.raises(ValueError, match="this has 3 characters"):
        EngineClient(f"tcp://a:1?key={key}&secret={short}", "test")


def test_client_keys_need_tcp_and_must_be_keys() -> None:
    cluster = ClusterSettings(client_keys=CLIENTS.public.hex())
    with pytest.raises(ValidationError, match="is for engines on TCP"):
        EngineSettings(endpoint="ipc:///e", cluster=cluster)
    with pytest.raises(ValidationError, match="64 hexadecimal digits"):
        ClusterSettings(client_keys="abc")
    assert EngineSettings(endpoint="tcp://0.0.0.0:0", cluster=cluster).cluster.keys == {CLIENTS.public}
