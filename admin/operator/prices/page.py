"""Gathers the price list and previews of new prices, and parses their forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from admin.amounts import read_dollars
from admin.badge import Badge
from admin.web.form_errors import FieldError
from billing.previews.service import Preview, PricePreviews
from billing.pricing import AMOUNTS, PriceService, PriceVersion, checked_amounts

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


@dataclass(frozen=True)
class PriceChange:
    """One price of a draft beside the one it replaces, in micro-USD."""

    label: str
    unit: str
    before: int | None
    """None while no price list is in effect."""
    after: int

    @property
    def is_changed(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True)
class PriceReview:
    """What publishing a draft would change."""

    amounts: Mapping[str, int]
    effective_from: datetime | None
    """None: at once."""
    changes: list[PriceChange]
    replaces: str
    """Id of the version that would be in effect otherwise; empty if there is none."""
    next_version_at: datetime | None
    """When a version that is scheduled already takes over."""
    preview: Preview

    @property
    def num_changed(self) -> int:
        return sum(change.is_changed for change in self.changes)


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

    async def review(
        self, amounts: Mapping[str, int], effective_from: datetime | None, now: datetime
    ) -> PriceReview:
        """Compares a draft with what would be in effect without it. Raises DatabaseUnavailable."""
        at = effective_from or now
        versions = await self._prices.list()
        earlier = [one for one in versions if one.effective_from <= at]
        replaced = earlier[-1] if earlier else None
        later = versions[len(earlier) :]
        return PriceReview(
            amounts=amounts,
            effective_from=effective_from,
            changes=[
                PriceChange(LABELS[name], UNITS[name], getattr(replaced, name, None), amounts[name])
                for name in AMOUNTS
            ],
            replaces=replaced.id if replaced else "",
            next_version_at=later[0].effective_from if later else None,
            preview=await self.preview(amounts, now),
        )

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
    """Returns micro-USD by name. Raises FieldError, or ValueError naming the field."""
    return checked_amounts({name: read_dollars(fields.get(name, ""), name) for name in AMOUNTS})


def read_moment(fields: Mapping[str, str], now: datetime) -> datetime | None:
    """From when; None: from now on. Raises FieldError."""
    if fields.get("effective_from") != "at":
        return None
    try:
        at = datetime.strptime(fields.get("at", ""), "%Y-%m-%dT%H:%M").replace(tzinfo=UTC)
    except ValueError:
        raise FieldError("at", "Enter a time such as 2027-01-01T00:00.") from None
    if at < now:
        raise FieldError("at", "This time must not be in the past. Choose a later one.")
    return at
