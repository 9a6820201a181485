"""What tokens cost: versions of the price list, and the arithmetic of one request's bill.

Money is whole micro-USD. Prices are micro-USD per million tokens, a class of service pays a whole percentage
of them, and the cost of a request is rounded up once, to the next micro-USD: the same counts always cost the
same integer. A request pays the version in effect when it was submitted, however long it runs; its rate
travels with it as a label, into the ledger. Refuses to know plans and limits: the percentage is given.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

import redis.asyncio
from sqlalchemy.exc import IntegrityError

from billing.errors import MalformedEvent, PriceTaken
from billing.models import Price
from billing.repository import PriceList
from db.base import new_id
from db.cache import EVERYTHING, RowCache
from db.session import EVERY_TENANT, Database
from engine.protocol import Usage

PRICES_CHANNEL = "rootstock:invalidate:prices"
RATE_LABEL = "rate"
"""A request's label that says what it pays: `Rate.label`."""
MAX_PRICE = 10**12
"""Micro-USD per million tokens: a million dollars for them."""
_UNIT = 100 * 1_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """What one request pays."""

    price_id: str
    """The version of the price list; empty before there is any."""
    input: int
    cached_input: int
    output: int
    percent: int = 100
    """Of its class of service."""

    def cost(self, usage: Usage) -> int:
        """Micro-USD of what was used, rounded up."""
        uncached = usage.prompt_tokens - usage.cached_tokens
        tokens = (
            uncached * self.input
            + usage.cached_tokens * self.cached_input
            + usage.completion_tokens * self.output
        )
        return -(-tokens * self.percent // _UNIT)

    def worst(self, prompt_tokens: int, completion_tokens: int) -> int:
        """The most that a request of so many tokens can cost, whatever is found in the prefix cache."""
        tokens = prompt_tokens * max(self.input, self.cached_input) + completion_tokens * self.output
        return -(-tokens * self.percent // _UNIT)

    @property
    def label(self) -> str:
        """The rate as a request carries it."""
        return f"{self.price_id}:{self.input}:{self.cached_input}:{self.output}:{self.percent}"

    @classmethod
    def of_label(cls, label: str) -> Rate:
        """Raises MalformedEvent for what no `label` is."""
        price_id, *numbers = label.split(":")
        if len(numbers) != 4 or not all(number.isascii() and number.isdecimal() for number in numbers):
            raise MalformedEvent(f"rate is {label[:80]!r}")
        return cls(price_id, *map(int, numbers))


@dataclass(frozen=True, slots=True)
class PriceVersion:
    """A row of the price list."""

    id: str
    effective_from: datetime
    input: int
    cached_input: int
    output: int


FREE = PriceVersion("", datetime.fromtimestamp(0, UTC), 0, 0, 0)
"""What is paid before the first version comes into effect."""


class PriceBook:
    """The price list in one process: read once, heard when it changes. `start` it with the process, `close`
    it at its end.
    """

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis, *, ttl: float = 30.0) -> None:
        self._database = database
        self._cache: RowCache[tuple[tuple[float, PriceVersion], ...]] = RowCache(
            redis_client, PRICES_CHANNEL, self._load, ttl=ttl
        )

    async def start(self) -> None:
        await self._cache.start()

    async def close(self) -> None:
        await self._cache.close()

    async def rate(self, percent: int, submitted_at: float) -> Rate:
        """What a request of a class that pays `percent` pays when submitted at that Unix time.

        Raises DatabaseUnavailable when the list was not read lately and cannot be read now.
        """
        versions = await self._cache.get("list", "")
        assert versions is not None
        for effective_from, version in versions:  # the latest first
            if effective_from <= submitted_at:
                return Rate(version.id, version.input, version.cached_input, version.output, percent)
        return Rate(FREE.id, FREE.input, FREE.cached_input, FREE.output, percent)

    async def _load(self, _group: str, _key: str) -> tuple[tuple[float, PriceVersion], ...]:
        async with self._database.read(EVERY_TENANT) as session:
            rows = await PriceList(session).versions()
        return tuple((row.effective_from.timestamp(), _version(row)) for row in reversed(rows))


class PriceService:
    """The price list, for the operator."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def list(self) -> list[PriceVersion]:
        """The earliest first."""
        async with self._database.read(EVERY_TENANT) as session:
            return [_version(row) for row in await PriceList(session).versions()]

    async def add(
        self, *, input: int, cached_input: int, output: int, effective_from: datetime | None = None
    ) -> PriceVersion:
        """A new version, in effect from now on or from a later moment; every process hears of it within a
        second.

        Raises PriceTaken, ValueError naming the field.
        """
        for name, amount in (("input", input), ("cached_input", cached_input), ("output", output)):
            if not 0 <= amount <= MAX_PRICE:
                raise ValueError(f"{name} must be from 0 to {MAX_PRICE}, not {amount}")
        now = datetime.fromtimestamp(time.time(), UTC)
        if effective_from is not None and (effective_from.tzinfo is None or effective_from < now):
            raise ValueError("effective_from must not be in the past, and must have a time zone")
        moment = effective_from or now
        row = Price(
            id=new_id("prc"),
            effective_from=moment,
            input=input,
            cached_input=cached_input,
            output=output,
        )
        try:
            async with self._database.write(EVERY_TENANT) as session:
                PriceList(session).add(row)
                session.after_commit(lambda: publish_price_change(self._redis))
        except IntegrityError as error:
            raise PriceTaken(moment) from error
        return _version(row)


async def publish_price_change(redis_client: redis.asyncio.Redis) -> None:
    """Tell every process that the price list changed."""
    await redis_client.publish(PRICES_CHANNEL, EVERYTHING)


def _version(row: Price) -> PriceVersion:
    return PriceVersion(row.id, row.effective_from, row.input, row.cached_input, row.output)
