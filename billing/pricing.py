"""Keeps the versions of the price list, and says which of them a request pays.

A request pays the version in effect when it was submitted, however long it runs. Its rate travels with it as
a label, into the ledger. The percentage of the service tier comes from the tenant's plan.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import redis.asyncio
from sqlalchemy.exc import IntegrityError

from billing.errors import PriceTaken
from billing.models import Price
from billing.rates import FREE_RATE, MAX_PRICE, RATE_LABEL, Rate
from billing.repository import PriceList
from db.base import new_id
from db.cache import EVERYTHING, Lifetimes, RowCache
from db.session import EVERY_TENANT, Database
from tenants.actors import OPERATOR, Actor
from tenants.audit.service import OPERATOR_CHAIN, AuditLog
from tenants.share_terms import ShareTerms

__all__ = ["RATE_LABEL", "PriceBook", "PriceService", "PriceVersion", "Rate"]

PRICES_CHANNEL = "rootstock:invalidate:prices"


@dataclass(frozen=True, slots=True)
class PriceVersion:
    """A version of the price list, in micro-USD per million tokens where nothing else is said."""

    id: str
    effective_from: datetime
    input: int
    cached_input: int
    output: int
    adapter_surcharge: int = 0
    """Per million tokens, input and output, of requests on an adapter."""
    adapter_gb_day: int = 0
    """Per GB (10**9 bytes) of packed adapters and UTC day."""
    calibration_job: int = 0
    """Per successful job."""

    def rate(self, percent: int, on_adapter: bool) -> Rate:
        """Returns the rate of a request in a service tier that pays `percent`, under this version."""
        surcharge = self.adapter_surcharge if on_adapter else 0
        return Rate(
            self.id,
            self.input + surcharge,
            self.cached_input + surcharge,
            self.output + surcharge,
            percent,
        )


AMOUNTS = ("input", "cached_input", "output", "adapter_surcharge", "adapter_gb_day", "calibration_job")


class PriceBook:
    """A process's cached copy of the price list, invalidated when the list changes. `start` it with the
    process and `close` it at the end.
    """

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis, *, ttl: float = 30.0) -> None:
        self._database = database
        self._cache: RowCache[tuple[tuple[float, PriceVersion], ...]] = RowCache(
            redis_client, PRICES_CHANNEL, self._load, lifetimes=Lifetimes(ttl)
        )

    async def start(self) -> None:
        await self._cache.start()

    async def close(self) -> None:
        await self._cache.close()

    async def rate(
        self, percent: int, submitted_at: float, on_adapter: bool, share: ShareTerms | None = None
    ) -> Rate:
        """Returns the rate of a request submitted at that Unix time, in a service tier that pays `percent`,
        on an adapter, shared by its owner under `share`, or on the base model alone.

        Raises DatabaseUnavailable when the cached list has expired and cannot be read again.
        """
        versions = await self._cache.get("list", "")
        assert versions is not None
        for effective_from, version in versions:  # the latest first
            if effective_from <= submitted_at:
                return replace(version.rate(percent, on_adapter), share=share)
        return replace(FREE_RATE, percent=percent, share=share)

    async def _load(self, _group: str, _key: str) -> tuple[tuple[float, PriceVersion], ...]:
        async with self._database.read(EVERY_TENANT) as session:
            rows = await PriceList(session).versions()
        return tuple((row.effective_from.timestamp(), _version(row)) for row in reversed(rows))


class PriceService:
    """Lists and publishes versions of the price list, for the operator."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def list(self) -> list[PriceVersion]:
        """Returns all versions, the earliest first."""
        async with self._database.read(EVERY_TENANT) as session:
            return [_version(row) for row in await PriceList(session).versions()]

    async def add(
        self,
        *,
        input: int,
        cached_input: int,
        output: int,
        adapter_surcharge: int = 0,
        adapter_gb_day: int = 0,
        calibration_job: int = 0,
        effective_from: datetime | None = None,
        actor: Actor = OPERATOR,
    ) -> PriceVersion:
        """Publishes a version that takes effect now or at a later moment; every process applies it within a
        second.

        Raises PriceTaken, or ValueError naming the field.
        """
        given = (input, cached_input, output, adapter_surcharge, adapter_gb_day, calibration_job)
        amounts = checked_amounts(dict(zip(AMOUNTS, given, strict=True)))
        now = datetime.fromtimestamp(time.time(), UTC)
        if effective_from is not None and (effective_from.tzinfo is None or effective_from < now):
            raise ValueError("effective_from must not be in the past, and must have a time zone")
        moment = effective_from or now
        row = Price(id=new_id("prc"), effective_from=moment, **amounts)
        try:
            async with self._database.write(EVERY_TENANT) as session:
                PriceList(session).add(row)
                session.after_commit(lambda: publish_price_change(self._redis))
                details = {"effective_from": moment.isoformat(), **amounts}
                await AuditLog.record(
                    session, OPERATOR_CHAIN, actor, "price.created", ("price", row.id), details
                )
        except IntegrityError as error:
            raise PriceTaken(moment) from error
        return _version(row)


def checked_amounts(amounts: Mapping[str, int]) -> dict[str, int]:
    """Returns the amounts. Raises ValueError naming the field that is out of range."""
    for name, amount in amounts.items():
        if not 0 <= amount <= MAX_PRICE:
            raise ValueError(f"{name} must be from 0 to {MAX_PRICE}, not {amount}")
    return dict(amounts)


async def publish_price_change(redis_client: redis.asyncio.Redis) -> None:
    """Tells every process that the price list changed."""
    await redis_client.publish(PRICES_CHANNEL, EVERYTHING)


def _version(row: Price) -> PriceVersion:
    return PriceVersion(row.id, row.effective_from, *(getattr(row, name) for name in AMOUNTS))
