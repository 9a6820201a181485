"""A tenant sends twenty times its share: what its neighbours see of it. In virtual time, always the same.

Ten tenants, each with a tenth of half of what the engine can do; then one of them sends twenty times as much,
which is more than all of it. The nine others go on as before, request for request.
"""

from __future__ import annotations

import pytest

from engine.protocol import PriorityClass
from tests.engine.plain.traffic import CPU, DEVICE, Costs, Seen, Sender, Traffic

PRIORITY, DEFAULT, FLEX = PriorityClass

ROWS = 32
LENGTH = 32
"""Of prompts and of answers."""
OTHERS = [f"t{number}" for number in range(9)]
SECONDS = 20.0


def share(costs: Costs = DEVICE) -> float:
    """Requests per second of one tenant: all ten together use half of the engine."""
    step = costs.step + ROWS * (costs.decode + costs.prefill)
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
    assert len(waits) > 400
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


def look_on_cpu(besides: list[Sender], step_s: float | None) -> tuple[Traffic, Seen]:
    """The nine send PRIORITY requests, others DEFAULT ones."""
    traffic = Traffic(ROWS, depth=0, costs=CPU, max_batch_tokens=512, flex_wait_s=5.0, priority_step_s=step_s)
    senders = [Sender(name, share(CPU), PRIORITY, LENGTH, LENGTH) for name in OTHERS]
    senders.append(Sender("patient", 0.3, FLEX, LENGTH, LENGTH))
    return traffic, traffic.run([*senders, *besides], SECONDS)


def test_steps_are_kept_short_for_priority_where_rows_are_what_takes_time() -> None:
    """An engine that is about as busy either way: beside nine more tenants, and beside the noisy one."""
    fillers = [Sender(f"f{number}", share(CPU), DEFAULT, LENGTH, LENGTH) for number in range(9)]
    noise = [Sender("noisy", 20 * share(CPU), DEFAULT, LENGTH, LENGTH)]
    target = 0.009
    _, calm = look_on_cpu(fillers, target)
    bounded, loud = look_on_cpu(noise, target)
    unbounded, louder = look_on_cpu(noise, None)
    assert p99(loud) < 1.15 * p99(calm)
    assert p99(loud) < 0.8 * p99(louder), "there was nothing to be gained"
    # Nobody pays for it: fewer rows, each of them faster, and none taken back.
    finished = [sum(name.startswith("noisy") for name in seen.finished) for seen in (loud, louder)]
    assert finished[0] > 0.9 * finished[1]
    assert bounded.core.stats.preemptions < unbounded.core.stats.preemptions
    flex = [loud.waits[name] for name in loud.of("patient") if name in loud.waits]
    assert flex
    assert max(flex) < 5.0 + 2.0


def test_rows_are_open_to_all_while_no_priority_comes_and_some_always() -> None:
    def most_rows(senders: list[Sender], step_s: float) -> int:
        traffic = Traffic(ROWS, depth=0, costs=CPU, max_batch_tokens=512, priority_step_s=step_s)
        most = 0
        decode = traffic.step

        def step() -> None:
            nonlocal most
            decode()
            if traffic.now > 6.0:  # it takes a while to learn how long steps are
                most = max(most, traffic.scheduler.running_by_class["default"])

        traffic.step = step  # type: ignore[method-assign]
        traffic.run(senders, 10.0)
        return most

    noise = Sender("noisy", 20 * share(CPU), DEFAULT, LENGTH, LENGTH)
    urgent = Sender("urgent", 2.0, PRIORITY, LENGTH, LENGTH)
    assert most_rows([noise], 0.009) == ROWS
    assert most_rows([noise, urgent], 0.009) < ROWS
    assert most_rows([noise, urgent], 0.000001) == ROWS // 8
