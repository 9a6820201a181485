"""Journals as engines write them: some requests, each with counts that differ from event to event and at most
one end, over a change of prices and the boundary of a month.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from billing.rates import RATE_LABEL, Rate
from engine.protocol import UsageEvent
from tests.support.journal import NOW, usage_event

MONTH_ENDS = 1_796_083_200.0
"""Unix seconds of 2026-12-01."""
RATES = (Rate("prc_1", 150_000, 75_000, 600_001), Rate("prc_2", 1, 0, 10**12, 175))
MOMENTS = (NOW, MONTH_ENDS - 150)


@st.composite
def requests(draw: st.DrawFn, serial: int) -> list[UsageEvent]:
    """Checkpoints of one request, then its end, or the loss of it."""
    tenant = draw(st.sampled_from(["tnt_a", "tnt_b"]))
    submitted_at = draw(st.sampled_from(MOMENTS)) + draw(st.integers(0, 300))
    submitted_at += draw(st.sampled_from([0.0, 0.25, 0.123456]))
    same: dict[str, Any] = {
        "tenant": tenant,
        "submitted_at": submitted_at,
        "labels": {
            "key_id": f"key_{draw(st.integers(0, 2))}",
            "model": draw(st.sampled_from(["sapling", "sapling:pirate@1"])),
            "service_tier": draw(st.sampled_from(["default", "flex"])),
            **draw(
                st.sampled_from([{}, {"project_id": "proj_a", "user_id": "usr_a"}, {"adapter_id": "adp_a"}])
            ),
            **draw(st.sampled_from([{}, *({RATE_LABEL: rate.label} for rate in RATES)])),
        },
        "n": draw(st.sampled_from([1, 3])),
    }
    most_prompt = draw(st.integers(1, 1000))
    completion = 0
    events = []
    for step in range(draw(st.integers(1, 4))):
        completion += draw(st.integers(0, 256))
        prompt = draw(st.integers(0, most_prompt))
        at = submitted_at + 1 + step
        events.append(
            usage_event(
                f"req-{serial}",
                prompt,
                completion,
                draw(st.integers(0, prompt)),
                reasoning=draw(st.integers(0, completion)),
                preemptions=draw(st.integers(0, 3)),
                recorded_at=at,
                scheduled_at=submitted_at + 0.5,
                first_token_at=submitted_at + 1 if step else None,
                **same,
            )
        )
    if draw(st.booleans()):
        reason = draw(st.sampled_from(["stop", "length", "abort", "error", "stop,length"]))
        events.append(
            usage_event(
                f"req-{serial}",
                most_prompt,
                completion + draw(st.integers(0, 5)),
                draw(st.integers(0, most_prompt)),
                preemptions=draw(st.integers(0, 3)),
                recorded_at=submitted_at + 9,
                scheduled_at=submitted_at + 0.5,
                first_token_at=submitted_at + 1,
                finished_at=submitted_at + 9,
                finish_reason=reason,
                **same,
            )
        )
    return events


@st.composite
def histories(draw: st.DrawFn) -> list[UsageEvent]:
    num_requests = draw(st.integers(1, 6))
    return [event for serial in range(num_requests) for event in draw(requests(serial))]
