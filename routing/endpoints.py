"""Reads lists of engines' endpoints from settings."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import redis.asyncio
from redis.exceptions import RedisError

from engine.registry import RegistryAddress, read_registry


def parse_endpoints(listed: str) -> tuple[str, ...]:
    """Returns the endpoints in a list separated by commas: engines, or one registry of engines. Raises
    ValueError when one is named twice, or beside a registry.
    """
    endpoints = tuple(one.strip() for one in listed.split(",") if one.strip())
    twice = next((one for number, one in enumerate(endpoints) if one in endpoints[:number]), None)
    if twice is not None:
        raise ValueError(f"{twice!r} is named twice: name each engine once")
    registry_in(endpoints)
    return endpoints


def registry_in(endpoints: Sequence[str]) -> RegistryAddress | None:
    """Returns the registry of engines that is named in place of endpoints; None for endpoints. Raises
    ValueError when both are named.
    """
    registries = [one for one in map(RegistryAddress.parse, endpoints) if one is not None]
    if registries and len(endpoints) > 1:
        raise ValueError("a registry of engines is named beside other endpoints: name the registry alone")
    return registries[0] if registries else None


async def engines_at(endpoints: Sequence[str]) -> tuple[str, ...]:
    """Returns the endpoints of the engines: those named, or those that the named registry lists now, none
    while Redis is away. Raises ValueError.
    """
    registry = registry_in(endpoints)
    if registry is None:
        return tuple(endpoints)
    with contextlib.suppress(RedisError):
        async with redis.asyncio.Redis.from_url(registry.redis_url, socket_timeout=5) as client:
            return tuple(registry.endpoints_of(await read_registry(client)))
    return ()
