"""Usage events as engines write them, and a stream to write them to."""

from __future__ import annotations

from typing import Any

import msgspec
import redis

from engine.protocol import JOURNAL_STREAM, PriorityClass, Usage, UsageEvent

NOW = 1_795_000_000.0
"""Unix seconds of 2026-11-18: any fixed moment within a month that has a partition or not."""


def usage_event(
    request_id: str = "req-1",
    prompt: int = 10,
    completion: int = 5,
    cached: int = 0,
    *,
    reasoning: int = 0,
    **changes: Any,
) -> UsageEvent:
    """An event of a running request; give `finished_at` and `finish_reason` for its last."""
    fields: dict[str, Any] = {
        "engine_id": "engine-0",
        "incarnation": "one",
        "tenant": "tnt_a",
        "submitted_at": NOW,
        "recorded_at": NOW + 1,
        "priority": PriorityClass.DEFAULT,
        "labels": {
            "key_id": "key_a",
            "model": "sapling:pirate@1",
            "adapter_id": "adp_a",
            "adapter_version": "1",
            "endpoint": "chat.completions",
            "service_tier": "default",
        },
    }
    usage = Usage(prompt, cached, completion, reasoning)
    return UsageEvent(request_id=request_id, usage=usage, **(fields | changes))


def numbered_event(number: int) -> UsageEvent:
    """One of many: its request's id and its completion tokens are its number."""
    return usage_event(f"r{number}", prompt=3, completion=number, labels={})


def write_events(url: str, events: list[UsageEvent]) -> None:
    """Append events to the journal, in order."""
    client = redis.Redis.from_url(url)
    pipe = client.pipeline()
    for event in events:
        pipe.xadd(JOURNAL_STREAM, {b"e": msgspec.msgpack.encode(event)})
    pipe.execute()
    client.close()
