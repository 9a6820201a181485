"""Gathers what the pages of adapters show of sharing: whom an adapter is shared with, and others' offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from adapters.shares import Offer, ShareView, SharingService
from adapters.sharing.models import ShareState
from admin import formatting
from admin.amounts import read_dollars
from admin.badge import Badge
from admin.web.form_errors import FieldError
from billing.months import span
from billing.service import UsageReports

MAX_SHOWN = 100
FIELDS = ("organization_id", "input_surcharge", "output_surcharge", "owner_percent")
_STATES = {
    ShareState.OFFERED: Badge("Offered", "busy"),
    ShareState.ACTIVE: Badge("Active", "good"),
    ShareState.DECLINED: Badge("Declined", "off"),
    ShareState.ENDED: Badge("Ended", "off"),
}


@dataclass(frozen=True)
class ShareRow:
    """A line of either list."""

    id: str
    organization: str
    """The other one."""
    organization_id: str
    model: str
    state: Badge
    input: str
    """The surcharge in dollars per million tokens."""
    output: str
    owner_percent: int
    earned: str
    """What the owner earned this month, in dollars."""
    version: int | None
    at: datetime
    """When the state began."""
    is_offered: bool
    is_live: bool


class SharesPage:
    """Gathers both lists."""

    def __init__(self, sharing: SharingService, usage: UsageReports) -> None:
        self._sharing = sharing
        self._usage = usage

    @property
    def most_percent(self) -> int:
        """The largest part of a surcharge that an owner can ask for."""
        return self._sharing.most_percent

    async def of_adapter(self, tenant_id: str, adapter: str) -> list[ShareRow]:
        """Returns the newest shares of an adapter, with this month's earnings. Raises AdapterNotFound."""
        shares = await self._sharing.shares(tenant_id, adapter, limit=MAX_SHOWN)
        earned: dict[str, int] = {}
        if shares:
            start, end = span(datetime.now(UTC).date().replace(day=1))
            for line in await self._usage.earned(tenant_id, start, end):
                earned[line.share_id] = earned.get(line.share_id, 0) + line.owner_part
        return [_row(one, of_owner=True, earned=earned.get(one.row.id, 0)) for one in shares]

    async def received(self, tenant_id: str) -> list[ShareRow]:
        """Returns the newest offers and shares of other organizations."""
        found = await self._sharing.received(tenant_id, limit=MAX_SHOWN)
        return [_row(one, of_owner=False) for one in found]


def read_offer(form: Mapping[str, str]) -> Offer:
    """Returns what the form offers. Raises FieldError."""
    percent = form.get("owner_percent", "").strip().removesuffix("%").strip()
    if percent and not (percent.isascii() and percent.isdecimal() and len(percent) <= 3):
        raise FieldError("owner_percent", "Enter a whole number of percent, such as 80.")
    return Offer(
        form.get("organization_id", "").strip(),
        read_dollars(form.get("input_surcharge", ""), "input_surcharge"),
        read_dollars(form.get("output_surcharge", ""), "output_surcharge"),
        int(percent) if percent else None,
    )


def _row(view: ShareView, *, of_owner: bool, earned: int = 0) -> ShareRow:
    row = view.row
    state = ShareState(row.state)
    return ShareRow(
        id=row.id,
        organization=view.recipient if of_owner else view.owner,
        organization_id=row.recipient_id if of_owner else row.tenant_id,
        model=row.model,
        state=_STATES[state],
        input=formatting.usd(row.input_surcharge),
        output=formatting.usd(row.output_surcharge),
        owner_percent=row.owner_percent,
        earned=formatting.usd(earned),
        version=view.serving_version,
        at=row.ended_at or row.accepted_at or row.created_at,
        is_offered=state == ShareState.OFFERED,
        is_live=state in (ShareState.OFFERED, ShareState.ACTIVE),
    )
