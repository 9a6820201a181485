"""Ledgers for tests of what is made of one: requests, charges and reversals, written as the service does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from billing.charges import CALIBRATION, STORAGE, ChargeBook, DueCharge
from billing.folding import fold, measure
from billing.rates import Rate
from billing.repository import LedgerWriter
from billing.request_ids import new_request_id
from billing.reversals import ReversalService
from db.session import EVERY_TENANT, Database
from engine.protocol import Usage, UsageEvent
from tenants.actors import OPERATOR
from tenants.share_terms import ShareTerms
from tests.support.journal import usage_event

START = int(datetime(2026, 10, 30, tzinfo=UTC).timestamp())
DAY = 86_400
END = START + 4 * DAY
"""Over the end of a month."""


@dataclass
class Booked:
    """What a tenant's ledger is to have."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    """Arguments of `request`."""
    charges: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Kind, moment in seconds, quantity, cost."""
    reversed: list[tuple[int, int]] = field(default_factory=list)
    """Which request, and when in seconds."""
    reversed_charges: list[tuple[int, int]] = field(default_factory=list)


def request(
    tenant: str,
    at: float,
    *,
    usage: Usage,
    rate: Rate | None = None,
    name: str | None = None,
    took: float = 1.5,
    finish_reason: str | None = "stop",
    key: str = "key_1",
    model: str = "sapling",
    tier: str = "default",
    **labels: str,
) -> UsageEvent:
    """The last event of a request."""
    labels |= {"key_id": key, "model": model, "service_tier": tier, "endpoint": "chat.completions"}
    if rate is not None:
        labels |= rate.labels
    return usage_event(
        name or new_request_id("chatcmpl", at),
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        reasoning=usage.reasoning_tokens,
        tenant=tenant,
        submitted_at=at,
        recorded_at=at + took,
        scheduled_at=at + 0.25,
        first_token_at=at + 0.5,
        finished_at=at + took if finish_reason else None,
        finish_reason=finish_reason,
        labels=labels,
    )


async def write(database: Database, events: Sequence[UsageEvent]) -> None:
    async with database.write(EVERY_TENANT) as session:
        await LedgerWriter(session).upsert(fold(measure(event) for event in events))


async def charge(
    database: Database, tenant: str, number: int, kind: str, at: int, quantity: int, cost: int
) -> str:
    reference = "adp_a@1" if kind == STORAGE else f"job_{number}"
    due = DueCharge(
        f"{kind}:{tenant}:{number}",
        tenant,
        kind,
        datetime.fromtimestamp(at, UTC),
        quantity,
        "prc_1",
        1,
        cost,
        reference,
    )
    async with database.write(EVERY_TENANT) as session:
        await ChargeBook(session).add([due])
    return due.id


async def book(database: Database, tenant: str, booked: Booked) -> None:
    """`tenant` has to exist: reversals are audited."""
    events = [request(tenant, **one) for one in booked.requests]
    if events:
        await write(database, events)
    ids = [await charge(database, tenant, number, *one) for number, one in enumerate(booked.charges)]
    reversals = ReversalService(database)
    for which, at in booked.reversed:
        await reversals.reverse_request(
            tenant,
            events[which].request_id,
            datetime.fromtimestamp(events[which].submitted_at, UTC),
            reason="=cmd|' /C calc'!A0",
            by=OPERATOR,
            now=datetime.fromtimestamp(at, UTC),
        )
    for which, at in booked.reversed_charges:
        moment = datetime.fromtimestamp(at, UTC)
        await reversals.reverse_charge(tenant, ids[which], reason="", by=OPERATOR, now=moment)


MOMENTS = st.integers(START, END - 1)
SHARED = ShareTerms("shr_1", "tnt_owner", 333_333, 1_000_001, 80)
"""The terms of another organization's adapter."""


@st.composite
def bookings(draw: st.DrawFn) -> Booked:
    """A few days of a tenant's, over a month's end."""
    requests = []
    for _ in range(draw(st.integers(0, 8))):
        prompt, completion = draw(st.integers(1, 5000)), draw(st.integers(0, 3000))
        usage = Usage(
            prompt,
            draw(st.integers(0, prompt)),
            completion,
            reasoning_tokens=draw(st.just(0) | st.integers(0, completion)),
        )
        price = draw(st.sampled_from([0, 1, 999_999, 150_000, 10**9]))
        tier = draw(st.sampled_from(["default", "flex"]))
        labels = {
            "key": draw(st.sampled_from(["key_1", "key_2"])),
            "model": draw(st.sampled_from(["sapling", "sapling:pirate@1"])),
            "tier": tier,
        }
        for name, values in (("project_id", "ab"), ("user_id", "cd"), ("adapter_id", "ef")):
            if draw(st.booleans()):
                labels[name] = draw(st.sampled_from(values))
        requests.append(
            {
                "at": draw(MOMENTS) + draw(st.sampled_from([0.0, 0.123456])),
                "usage": usage,
                "rate": draw(
                    st.none()
                    | st.builds(
                        Rate,
                        *map(st.just, ("prc_1", price, price // 2, 2 * price, 50 if tier == "flex" else 100)),
                        st.none() | st.just(SHARED),
                    )
                ),
                **labels,
            }
        )
    charges = draw(
        st.lists(
            st.tuples(
                st.sampled_from([STORAGE, CALIBRATION]),
                MOMENTS,
                st.integers(0, 10**12),
                st.integers(0, 10**7),
            ),
            max_size=3,
        )
    )

    def some(things: Sequence[Any]) -> list[tuple[int, int]]:
        places = range(len(things))
        chosen = draw(st.sets(st.sampled_from(places), max_size=2)) if things else set()
        return [(place, draw(MOMENTS)) for place in sorted(chosen)]

    return Booked(requests, charges, some(requests), some(charges))
