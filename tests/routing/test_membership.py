"""Engines that register in Redis: they join, move and leave without a list of endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from engine.registry import REGISTRY, RegistryAddress
from engine.transport.curve import KeyPair
from routing.endpoints import engines_at, parse_endpoints, registry_in
from routing.replica_set import ReplicaSet
from tests.engine.process.engines import read, submission, tokens_of, until
from tests.routing.conftest import StartEngine

CLIENTS = KeyPair.make()
SECURE = {"endpoint": "tcp://127.0.0.1:0", "client_keys": CLIENTS.public.hex()}
Follow = Callable[[], Awaitable[ReplicaSet]]


@pytest.fixture
def registry(redis_url: str, tmp_path: Path) -> RegistryAddress:
    CLIENTS.write(tmp_path / "clients.key")
    return RegistryAddress(redis_url, tmp_path / "clients.key")


@pytest.fixture
async def follow(registry: RegistryAddress) -> AsyncIterator[Follow]:
    made: list[ReplicaSet] = []

    async def follow_it() -> ReplicaSet:
        made.append(ReplicaSet(parse_endpoints(str(registry)), "test"))
        await made[-1].start()
        return made[-1]

    yield follow_it
    for one in made:
        await one.close()


async def test_engines_join_as_they_register_and_go_when_they_end(
    start_replica: StartEngine, follow: Follow
) -> None:
    engines = await follow()
    assert engines.clients == []
    assert not engines.ready
    assert engines.ready_in > 0
    first = start_replica(0, **SECURE)
    await until(lambda: engines.num_serving == 1)
    start_replica(1, **SECURE)
    await until(lambda: engines.num_serving == 2)
    assert len(tokens_of(await read(engines.submit(submission("r", 5))))) == 5
    first.signal(15)
    assert first.wait() == 0
    await until(lambda: engines.num_serving == 1 and len(engines.clients) == 1)


async def test_of_several_bases_only_the_engines_of_its_own_are_followed(
    start_replica: StartEngine, follow: Follow, registry: RegistryAddress
) -> None:
    start_replica(0, **SECURE)
    start_replica(1, base_name="elm", **SECURE)
    both = await follow()
    await until(lambda: len(both.clients) == 2)
    of_elm = replace(registry, base="elm")
    one = ReplicaSet(parse_endpoints(str(of_elm)), "test")
    await one.start()
    try:
        await until(lambda: one.num_serving == 1)
        assert len(one.clients) == 1
        assert one.info is not None
        assert one.info.base == "elm"
        assert len(await engines_at([str(of_elm)])) == 1
    finally:
        await one.close()


async def test_a_killed_engine_is_followed_to_its_next_address(
    start_replica: StartEngine, follow: Follow
) -> None:
    engines = await follow()
    process = start_replica(0, **SECURE)
    await until(lambda: engines.num_serving == 1)
    before = engines.clients[0].endpoint
    process.kill()
    process.start()
    await until(lambda: engines.num_serving == 1 and engines.clients[0].endpoint != before)
    assert len(tokens_of(await read(engines.submit(submission("r", 5))))) == 5
    await until(lambda: len(engines.clients) == 1)


async def test_an_empty_registry_does_not_disconnect_engines(
    start_replica: StartEngine, follow: Follow, redis_url: str
) -> None:
    engines = await follow()
    start_replica(0, **SECURE)
    await until(lambda: engines.num_serving == 1)
    open_request = engines.submit(submission("r", 600))
    with redis.Redis.from_url(redis_url) as client:
        for _ in range(20):
            client.delete(REGISTRY)
            await asyncio.sleep(0.1)
            assert engines.num_serving == 1
    assert len(tokens_of(await read(open_request))) == 600


async def test_without_redis_the_known_engines_stay(
    start_replica: StartEngine, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = await follow()
    start_replica(0, **SECURE)
    await until(lambda: engines.num_serving == 1)
    membership = engines._membership
    assert membership is not None

    async def away(*_: object) -> None:
        raise redis.ConnectionError("gone")

    monkeypatch.setattr(membership._redis, "smembers", away)
    await until(lambda: membership._is_away)
    assert len(tokens_of(await read(engines.submit(submission("r", 5))))) == 5
    monkeypatch.undo()
    await until(lambda: not membership._is_away)


async def test_one_shot_readers_see_the_registered_engines(
    start_replica: StartEngine, registry: RegistryAddress
) -> None:
    start_replica(0, **SECURE)
    async with asyncio.timeout(30):
        while not (found := await engines_at([str(registry)])):  # noqa: ASYNC110 - another process's doing
            await asyncio.sleep(0.05)
    assert found[0].startswith("tcp://127.0.0.1:")
    assert await engines_at(["ipc:///a"]) == ("ipc:///a",)
    nowhere = RegistryAddress("unix:///nowhere.sock?db=0", registry.secret)
    assert await engines_at([str(nowhere)]) == ()


def test_a_registry_is_written_and_read(tmp_path: Path) -> None:
    for url in ("redis://:p%40w@h:6379/0", "unix:///a%20b/redis.sock?db=0"):
        address = RegistryAddress(url, tmp_path / "a key")
        assert RegistryAddress.parse(str(address)) == address
        assert registry_in([str(address)]) == address
        of_base = replace(address, base="oak-1b")
        assert RegistryAddress.parse(str(of_base)) == of_base != address
    for text in (
        "registry+rediss://h:6379/0?ssl_ca_certs=/ca.pem&db=1?secret=/a%20key",
        "registry+rediss://h:6379/0?ssl_ca_certs=/ca.pem&secret=/a+key&db=1",
    ):
        assert RegistryAddress.parse(text) == RegistryAddress(
            "rediss://h:6379/0?ssl_ca_certs=/ca.pem&db=1", Path("/a key")
        )
    assert registry_in(["tcp://a:1", "ipc:///b"]) is None
    with pytest.raises(ValueError, match="needs the clients' key"):
        parse_endpoints("registry+redis://h:6379/0")
    with pytest.raises(ValueError, match="name the registry alone"):
        parse_endpoints(f"{address},ipc:///a")
