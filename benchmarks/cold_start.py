"""Measures what an adapter that is not on the device costs: its own requests, and all others.

Other rows decode all the while, on adapters that are resident.

* To first token: pairs of requests of the same prompt length, one on an adapter that has to be loaded from
  host memory and one on an adapter that is resident, in turn. The difference is what being cold adds.
* To the others: adapters are prefetched, one after the other, without requests for them. Steps that ended
  while a load was under way are compared with steps that did not: the other rows' inter-token latency.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.in_process import InProcessEngine, random_prompts
from benchmarks.load_figures import percentiles
from benchmarks.random_adapters import Registered

PROMPT_LEN = 64
OUTPUT_LEN = 2
IDLE_S = 0.001
"""How long a step sleeps at most when there is nothing to run."""
SETTLE_STEPS = 4
"""Decode steps between two requests, so that one does not see the last."""


class Background:
    """Rows that decode on resident adapters, replaced when they end."""

    def __init__(
        self, engine: InProcessEngine, rows: int, adapters: list[Registered], prompt_len: int, output_len: int
    ) -> None:
        self._engine = engine
        self._rows = rows
        self._adapters = adapters
        self._prompt_len = prompt_len
        self._output_len = output_len
        self._rng = np.random.default_rng(11)
        self._alive: set[str] = set()
        self._sent = 0

    def fill(self) -> None:
        """Submits requests until there are enough rows, and computes their prompts."""
        while len(self._alive) < self._rows:
            prompt = self._prompt()
            adapter = self._adapters[self._sent % len(self._adapters)]
            self._alive.add(self._engine.submit(prompt, self._output_len, adapter))
            self._sent += 1
        while len(self._engine.core.scheduler.queue):
            self.step()
        for _ in range(SETTLE_STEPS):
            self.step()

    def step(self) -> tuple[float, list[str]]:
        """Milliseconds of one step, and the foreign requests it had tokens for."""
        began = time.perf_counter()
        chunks = self._engine.step(IDLE_S)
        milliseconds = 1e3 * (time.perf_counter() - began)
        foreign = [chunk.request_id for chunk in chunks if chunk.request_id not in self._alive]
        self._alive -= {chunk.request_id for chunk in chunks if chunk.finish_reason}
        return milliseconds, foreign

    def ask(self, adapter: Registered) -> float:
        """Returns milliseconds to the first token of a request on `adapter`, and waits for its end."""
        prompt = self._prompt()
        began = time.perf_counter()
        request_id = self._engine.submit(prompt, OUTPUT_LEN, adapter)
        while request_id not in self.step()[1]:
            assert time.perf_counter() - began < 60, "no first token"
        milliseconds = 1e3 * (time.perf_counter() - began)
        while request_id not in self.step()[1]:
            pass
        return milliseconds

    def _prompt(self) -> list[int]:
        (prompt,) = random_prompts(self._rng, self._engine.model.config.vocab_size, [self._prompt_len])
        return prompt


def probe(engine: InProcessEngine, rank: int, dtype: str, rows: int, count: int) -> dict[str, Any]:
    """Both experiments, `count` adapters each. A quarter of the slots serves the background."""
    num_slots = engine.sizes.num_slots
    rows = min(rows, engine.sizes.max_rows - 1)
    num_resident = max(1, num_slots // 4)
    # Twice as many as there are slots: the least recently used are evicted.
    adapters = engine.library.register(2 * num_slots + num_resident, [rank], dtype)
    resident, others = adapters[:num_resident], adapters[num_resident:]
    prompt_len = min(PROMPT_LEN, engine.sizes.max_len // 2)
    output_len = min(engine.sizes.max_len - prompt_len, 8 * count + 64)
    engine.make_resident(resident)
    background = Background(engine, rows, resident, prompt_len, output_len)
    background.fill()
    cold, warm = _first_tokens(engine, background, resident, others, count)
    during, otherwise, seconds = _other_rows(engine, background, others, count)
    for _ in engine.drain():
        pass
    added = {f"p{q}": round(float(np.percentile(cold, q) - np.percentile(warm, q)), 3) for q in (50, 99)}
    slower = {
        f"p{q}": round(float(np.percentile(during, q) / np.percentile(otherwise, q)), 4) for q in (50, 99)
    }
    return {
        "background_rows": rows, "pairs": len(cold), "prompt_len": prompt_len,
        "cold_ttft_ms": percentiles(cold), "warm_ttft_ms": percentiles(warm), "added_ms": added,
        "load_ms": percentiles([1e3 * value for value in seconds]),
        "itl_during_loads_ms": percentiles(during), "itl_otherwise_ms": percentiles(otherwise),
        "itl_ratio": slower,
    }  # fmt: skip


def _first_tokens(
    engine: InProcessEngine,
    background: Background,
    resident: list[Registered],
    others: list[Registered],
    count: int,
) -> tuple[list[float], list[float]]:
    cold, warm = [], []
    for number in range(count):
        background.fill()
        away = next(adapter for adapter in others[number:] + others if not engine.is_resident(adapter))
        cold.append(background.ask(away))
        background.fill()
        warm.append(background.ask(resident[number % len(resident)]))
    return cold, warm


def _other_rows(
    engine: InProcessEngine, background: Background, others: list[Registered], count: int
) -> tuple[list[float], list[float], list[float]]:
    """Step times during loads and otherwise, and the seconds that loads took, as seen between steps."""
    during: list[float] = []
    otherwise: list[float] = []
    seconds: list[float] = []
    slots = engine.core.scheduler.slot_allocator.slots
    for number in range(count):
        background.fill()
        away = next(adapter for adapter in others[number:] + others if not engine.is_resident(adapter))
        otherwise += [background.step()[0] for _ in range(SETTLE_STEPS)]
        began = time.perf_counter()
        engine.core.prefetch(away.ref)
        while slots.find(away.ref.digest) is not None and not engine.is_resident(away):
            loading = slots.num_loading > 0
            milliseconds, _ = background.step()
            (during if loading else otherwise).append(milliseconds)
            assert time.perf_counter() - began < 60, "a load does not end"
        seconds.append(time.perf_counter() - began)
    return during, otherwise, seconds
