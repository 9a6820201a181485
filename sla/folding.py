"""Adds the API processes' batches of counts to the minutes in the database, each batch once.

A batch and the record that it was counted are one transaction, so a batch that is read again, because its
sender or reader did not see the result, changes nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import redis.asyncio
import structlog

from db.session import EVERY_TENANT, Database
from db.stream import Entry, StreamConsumer
from sla.measures import FIRST_TOKEN_EDGES, OUTPUT_RATE_EDGES, Counts
from sla.recorder import STREAM, Delta
from sla.repository import Place, SlaWriter

log = structlog.get_logger(__name__)

GROUP = "sla"
KEEP_BATCHES = timedelta(days=7)
"""Longer than any process holds a batch back."""
MONTHS_AHEAD = 3

_DECODER = msgspec.msgpack.Decoder(list[Delta])


class SlaFolding:
    """One consumer of the batches. Consumers that run at the same time need different `consumer` names."""

    def __init__(
        self,
        database: Database,
        redis_client: redis.asyncio.Redis,
        consumer: str,
        *,
        batch_size: int = 200,
        stale_after: float = 10.0,
    ) -> None:
        self._database = database
        self._stream = StreamConsumer(
            redis_client, STREAM, GROUP, consumer, batch_size=batch_size, stale_after=stale_after
        )

    async def drain(self, *, max_batches: int = 20) -> int:
        """Counts the batches in the stream; returns how many. Raises DatabaseUnavailable or RedisError:
        batches not acknowledged are counted next time.
        """
        return await self._stream.drain(self._count, max_batches)

    async def tidy(self, now: datetime | None = None) -> None:
        """Creates the months ahead, and forgets old batches and consumers."""
        today = (now or datetime.now(UTC)).date()
        async with self._database.write(EVERY_TENANT) as session:
            writer = SlaWriter(session)
            await writer.ensure_partitions(today, MONTHS_AHEAD + 1)
            await writer.forget_batches(KEEP_BATCHES)
        await self._stream.forget_idle_consumers()

    async def _count(self, entries: list[Entry]) -> None:
        batches: dict[tuple[str, int], list[Delta]] = {}
        for entry_id, fields in entries:
            try:
                number = int(fields[b"number"])
                deltas = _DECODER.decode(fields[b"counts"])
                _check(deltas)
            except (KeyError, ValueError, msgspec.DecodeError) as error:
                log.error("batch of counts is malformed", entry_id=entry_id.decode(), error=str(error))
            else:
                batches[fields[b"source"].decode(), number] = deltas
        async with self._database.write(EVERY_TENANT) as session:
            writer = SlaWriter(session)
            claimed = await writer.claim(list(batches))
            await writer.add(_summed([delta for batch in sorted(claimed) for delta in batches[batch]]))


def _check(deltas: list[Delta]) -> None:
    """Raises ValueError for counts that the database would reject, or that fit no bucket."""
    for delta in deltas:
        numbers = (
            *(delta.failed, delta.first_tokens, delta.first_tokens_in_time, delta.rated, delta.rated_fast),
            *(count for _, count in (*delta.first_token_buckets, *delta.output_rate_buckets)),
        )
        if min(numbers) < 0 or delta.failed > delta.requests:
            raise ValueError("a count is negative, or more requests failed than were counted")
        for pairs, edges in (
            (delta.first_token_buckets, FIRST_TOKEN_EDGES),
            (delta.output_rate_buckets, OUTPUT_RATE_EDGES),
        ):
            if any(not 0 <= bucket <= len(edges) for bucket, _ in pairs):
                raise ValueError("a histogram bucket is out of range")


def _summed(deltas: list[Delta]) -> dict[Place, Counts]:
    sums: dict[Place, Counts] = {}
    for delta in deltas:
        place = (delta.tenant_id, delta.service_tier, datetime.fromtimestamp(delta.minute, UTC))
        sums.setdefault(place, Counts()).add(_counts(delta))
    return sums


def _counts(delta: Delta) -> Counts:
    counts = Counts(
        delta.requests,
        delta.failed,
        delta.first_tokens,
        delta.first_tokens_in_time,
        delta.rated,
        delta.rated_fast,
    )
    for histogram, buckets in (
        (counts.first_token_histogram, delta.first_token_buckets),
        (counts.output_rate_histogram, delta.output_rate_buckets),
    ):
        for bucket, count in buckets:
            histogram[bucket] += count
    return counts
