"""The first page: what a tenant can ask for, what it used today, and which keys it has.

Owns what is gathered and how it is summed for display. Refuses to know HTTP, sessions and markup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from adapters.service import ModelCard, ModelResolver
from admin.bar_list import Chart, bar_chart
from billing.service import UsageReports
from tenants.key_service import KeyService

MAX_BARS = 12
MAX_KEYS = 1_000


@dataclass(frozen=True)
class UsageToday:
    """Sums since midnight UTC."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True)
class ModelRow:
    """A model as the page lists it."""

    name: str
    rank: int | None
    created_at: datetime | None

    @property
    def is_base(self) -> bool:
        return self.rank is None


@dataclass(frozen=True)
class KeyRow:
    """A key as the page lists it: never its text, which nobody has."""

    name: str
    prefix: str
    kind: str
    created_at: datetime
    last_used_at: datetime | None
    revoked: bool


@dataclass(frozen=True)
class Overview:
    """Everything the template shows."""

    base: str
    models: list[ModelRow]
    keys: list[KeyRow]
    usage: UsageToday
    chart: Chart


@dataclass(frozen=True)
class OverviewPage:
    """Gathers the page from the services."""

    keys: KeyService
    models: ModelResolver
    usage: UsageReports

    async def gather(self, tenant_id: str) -> Overview:
        """The page of one tenant, as of now. Raises `DatabaseUnavailable`."""
        midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        cards, keys, report = await asyncio.gather(
            self.models.list(tenant_id),
            self.keys.list(tenant_id, with_revoked=True, limit=MAX_KEYS, newest_first=False),
            self.usage.completions(tenant_id, start_time=int(midnight.timestamp()), group_by=["model"]),
        )
        results = [result for bucket in report["data"] for result in bucket["results"]]
        return Overview(
            base=self.models.base,
            models=[_model_row(card) for card in cards],
            keys=[
                KeyRow(
                    name=key.name,
                    prefix=key.prefix,
                    kind=key.kind,
                    created_at=key.created_at.astimezone(UTC),
                    last_used_at=key.last_used_at.astimezone(UTC) if key.last_used_at else None,
                    revoked=key.revoked_at is not None,
                )
                for key, *_ in keys
            ],
            usage=_total(results),
            chart=bar_chart(_bars(results)),
        )


def _model_row(card: ModelCard) -> ModelRow:
    created = datetime.fromtimestamp(card.created, UTC) if card.created else None
    return ModelRow(card.id, card.rank, created)


def _total(results: Iterable[dict[str, Any]]) -> UsageToday:
    results = list(results)
    return UsageToday(
        requests=sum(result["num_model_requests"] for result in results),
        prompt_tokens=sum(result["input_tokens"] for result in results),
        cached_tokens=sum(result["input_cached_tokens"] for result in results),
        completion_tokens=sum(result["output_tokens"] for result in results),
    )


def _bars(results: Iterable[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """The models that used most, and the rest as one row: the chart adds up to the tiles above it."""
    rows = [(str(r["model"] or "unknown"), int(r["input_tokens"]), int(r["output_tokens"])) for r in results]
    rows.sort(key=lambda row: (-(row[1] + row[2]), row[0]))
    shown, rest = rows[:MAX_BARS], rows[MAX_BARS:]
    if rest:
        shown.append((f"{len(rest)} others", sum(row[1] for row in rest), sum(row[2] for row in rest)))
    return shown
