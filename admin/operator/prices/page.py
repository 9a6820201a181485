"""Gathers the price list and previews of new prices, and parses their forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from admin.amounts import read_dollars
from admin.badge import Badge
from admin.web.form_errors import FieldError
from billing.previews.service import Preview, PricePreviews
from billing.pricing import AMOUNTS, PriceService, PriceVersion

LABELS = {
    "input": "Input",
    "cached_input": "Cached input",
    "output": "Output",
    "adapter_surcharge": "Adapter surcharge",
    "adapter_gb_day": "Adapter storage",
    "calibration_job": "Calibration",
}
UNITS = dict.fromkeys(AMOUNTS, "USD per million tokens") | {
    "adapter_gb_day": "USD per GB per day",
    "calibration_job": "USD per successful job",
}
FIELDS = (*AMOUNTS, "effective_from", "at")


@dataclass(frozen=True)
class VersionRow:
    version: PriceVersion
    state: Badge


@dataclass(frozen=True)
class PriceList:
    versions: list[VersionRow]
    """The latest first."""


class PricePages:
    """Gathers the pages."""

    def __init__(self, prices: PriceService, previews: PricePreviews) -> None:
        self._prices = prices
        self._previews = previews

    async def list(self, now: datetime) -> PriceList:
        """Raises DatabaseUnavailable."""
        return PriceList(_rows(await self._prices.list(), now))

    async def in_effect(self, now: datetime) -> PriceVersion | None:
        begun = [one for one in await self._prices.list() if one.effective_from <= now]
        return begun[-1] if begun else None

    async def preview(self, amounts: Mapping[str, int], now: datetime) -> Preview:
        return await self._previews.preview(PriceVersion("", now, **amounts), now)


def _rows(versions: list[PriceVersion], now: datetime) -> list[VersionRow]:
    rows, seen = [], False
    for version in reversed(versions):
        if version.effective_from > now:
            state = Badge("Scheduled", "busy")
        elif not seen:
            state, seen = Badge("In effect", "good"), True
        else:
            state = Badge("Past", "off")
        rows.append(VersionRow(version, state))
    return rows


def written(amount: int) -> str:
    """Dollars for a field, as `read_dollars` takes them."""
    whole, rest = divmod(amount, 1_000_000)
    return f"{whole}.{f'{rest:06d}'.rstrip('0').ljust(2, '0')}"


def read_amounts(fields: Mapping[str, str]) -> dict[str, int]:
    """Micro-USD by name. Raises Refused."""
    return {name: read_dollars(fields.get(name, ""), name) for name in AMOUNTS}


def read_moment(fields: Mapping[str, str]) -> datetime | None:
    """From when; None: from now on. Raises Refused."""
    if fields.get("effective_from") != "at":
        return None
    try:
        return datetime.strptime(fields.get("at", ""), "%Y-%m-%dT%H:%M").replace(tzinfo=UTC)
    except ValueError:
        raise FieldError("at", "Enter a time such as 2027-01-01T00:00.") from None
