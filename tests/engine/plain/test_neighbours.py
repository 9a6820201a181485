"""A tenant sends twenty times its share: what its neighbours see of it. In virtual time, always the same.

Ten tenants, each with a tenth of half of what the engine can do; then one of them sends twenty times as much,
which is more than all of it. The nine others go on as before, request for request.
"""

from __future__ import annotations

import pytest

from engine.protocol import PriorityClass
from tests.engine.plain.traffic import (
    DECODE_SECONDS,
    PREFILL_SECONDS,
    STEP_SECONDS,
    Seen,
    Sender,
    Traffic,
)

PRIORITY, DEFAULT, FLEX = PriorityClass

ROWS = 32
LENGTH = 32
"""Of prompts and of answers."""
OTHERS = [f"t{number}" for number in range(9)]
SECONDS = 20.0


def share() -> float:
    """Requests per second of one tenant: all ten together use half of the engine."""
    step = STEP_SECONDS + ROWS * (DECODE_SECONDS + PREFILL_SECONDS)
    return 0.5 * ROWS / (LENGTH * step) / 10


def look(priority: PriorityClass, times: float) -> tuple[Traffic, Seen]:
    """The noisy tenant sends DEFAULT requests, `times` its share, and a few FLEX ones come besides."""
    traffic = Traffic(ROWS, max_batch_tokens=512, flex_wait_s=5.0)
    senders = [Sender(name, share(), priority, LENGTH, LENGTH) for name in OTHERS]
    senders.append(Sender("noisy", share() * times, DEFAULT, LENGTH, LENGTH))
    senders.append(Sender("patient", 0.3, FLEX, LENGTH, LENGTH))
    return traffic, traffic.run(senders, SECONDS)


def p99(seen: Seen) -> float:
    waits = sorted(seen.waits.get(name, float("inf")) for other in OTHERS for name in seen.of(other))
    assert len(waits) > 500
    return waits[int(0.99 * len(waits))]


@pytest.mark.parametrize(("priority", "most"), [(PRIORITY, 1.15), (DEFAULT, 1.5)])
def test_a_noisy_neighbour_is_hardly_noticed(priority: PriorityClass, most: float) -> None:
    _, calm = look(priority, 1.0)
    traffic, loud = look(priority, 20.0)
    assert p99(loud) < most * p99(calm)
    assert not any(loud.sent[name].tenant in OTHERS for name in loud.rejected), "they are not shed for it"
    # It was too much: else there was nothing to protect them from.
    assert loud.ttft("noisy", 0.5) > 20 * p99(loud)
    flex = [loud.waits[name] for name in loud.of("patient") if loud.sent[name].submitted_at < SECONDS - 8]
    assert max(flex) < 5.0 + 2.0
    assert traffic.core.stats.preemptions, "rows were taken from it"
