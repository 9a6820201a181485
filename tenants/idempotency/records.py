"""Stores idempotency records in Redis: requests in progress, and the responses of those that succeeded.

A record is either in progress, under a lease that its process renews, or done, with the response, for a day.
Responses are opaque bytes, which the caller encrypts. Each tenant has a bounded number of records and bytes;
the oldest are evicted first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from tenants.errors import TenantError

TIMEOUT = 2.0
"""Seconds to wait for Redis."""
_PREFIX = "rootstock:idempotency:"
_FINISH = Path(__file__).with_name("finish.lua").read_text()
_CLAIM = """
local found = redis.call('GET', KEYS[1])
if not found then redis.call('SET', KEYS[1], 'P' .. ARGV[1], 'PX', ARGV[2]) end
return found
"""
_RENEW = """
if redis.call('GET', KEYS[1]) ~= 'P' .. ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_RELEASE = (
    "if redis.call('GET', KEYS[1]) == 'P' .. ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)


class RecordsUnavailable(TenantError):
    """Redis does not answer, so it is unknown whether the request was processed before."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long records live, and how many a tenant can have."""

    lease: float = 60.0
    """Seconds that a request in progress keeps its record after the last renewal by its process."""
    keep: float = 86_400.0
    """Seconds that a response is kept."""
    max_records: int = 10_000
    max_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Claim:
    """The exclusive right to process a request; `token` is its fencing token."""

    tenant_id: str
    record_id: str
    token: str


@dataclass(frozen=True, slots=True)
class Stored:
    """The response of a request that was processed before."""

    response: bytes


class IdempotencyRecords:
    """Idempotency records of all tenants."""

    def __init__(self, client: redis.asyncio.Redis, bounds: Bounds | None = None) -> None:
        self._client = client
        self._bounds = bounds or Bounds()

    async def claim(self, tenant_id: str, record_id: str) -> Claim | Stored | None:
        """Returns a claim on a new record, the stored response of one that is done, or None for one in
        progress.

        Raises RecordsUnavailable.
        """
        claim = Claim(tenant_id, record_id, token_hex(12))
        found = await self._run(_CLAIM, [_key(tenant_id, record_id)], [claim.token, self._lease])
        if found is None:
            return claim
        return Stored(found[1:]) if found[:1] == b"D" else None

    @asynccontextmanager
    async def held(self, claim: Claim) -> AsyncIterator[None]:
        """Renews the claim's lease until the block ends."""
        is_over = asyncio.Event()
        renewing = asyncio.create_task(self._renew(claim, is_over), name="idempotency lease")
        try:
            yield
        finally:
            is_over.set()  # a cancellation alone can end in the Redis client, as an error of its connection
            renewing.cancel()
            await asyncio.wait([renewing])

    async def finish(self, claim: Claim, response: bytes) -> None:
        """Stores the response. Raises RecordsUnavailable."""
        tenant, bounds = claim.tenant_id, self._bounds
        keys = [_key(tenant, claim.record_id), _key(tenant, "index"), _key(tenant, "sizes")]
        limits = [int(bounds.keep * 1000), bounds.max_records, bounds.max_bytes, _key(tenant, "")]
        await self._run(_FINISH, keys, [claim.token, claim.record_id, response, *limits])

    async def release(self, claim: Claim) -> None:
        """Deletes the record, so that the next request with its key is processed. Raises
        RecordsUnavailable.
        """
        await self._run(_RELEASE, [_key(claim.tenant_id, claim.record_id)], [claim.token])

    @property
    def _lease(self) -> int:
        return int(self._bounds.lease * 1000)

    async def _renew(self, claim: Claim, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            await asyncio.sleep(self._bounds.lease / 4)
            try:
                await self._run(_RENEW, [_key(claim.tenant_id, claim.record_id)], [claim.token, self._lease])
            except RecordsUnavailable:
                continue

    async def _run(self, script: str, keys: list[str], arguments: list[Any]) -> Any:
        try:
            async with asyncio.timeout(TIMEOUT):
                return await self._client.eval(script, len(keys), *keys, *arguments)
        except (RedisError, OSError) as error:
            raise RecordsUnavailable("idempotency records cannot be reached") from error


def _key(tenant_id: str, name: str) -> str:
    """Returns the Redis key; the braces keep all keys of a tenant in one cluster slot."""
    return f"{_PREFIX}{{{tenant_id}}}:{name}"
