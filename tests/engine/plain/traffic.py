"""Traffic in virtual time: tenants that send at their own pace to a whole engine, and what they saw of it.

A step takes as long as its tokens say, by a model of a device: a part that does not depend on them, one for
each row that decodes, one for each known token. Nothing here looks at a clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import merge
from random import Random

from engine.core import EngineCore
from engine.environment import EngineEnvironment
from engine.kv_cache import BlockPool
from engine.lora.slots import SlotTable
from engine.null_runner import NullRunner
from engine.protocol import PriorityClass, Rejected, SamplingParams, Submit
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.validation import EngineLimits


@dataclass(frozen=True)
class Costs:
    """Seconds that a step takes: whatever is in it, for each row that decodes, for each known token."""

    step: float
    decode: float
    prefill: float


DEVICE = Costs(0.010, 0.00005, 0.00002)
"""Weights are read once for all rows."""
CPU = Costs(0.002, 0.0005, 0.0001)
"""Every row is computed by itself, nearly."""


@dataclass(frozen=True)
class Sender:
    """A tenant's requests of one kind: so many per second, at random times."""

    tenant: str
    per_second: float
    priority: PriorityClass = PriorityClass.DEFAULT
    prompt_len: int = 64
    max_tokens: int = 64

    def times(self, seconds: float, seed: int) -> Iterator[tuple[float, str, Sender]]:
        """When each request comes. The same for the same seed, whoever else sends."""
        random = Random(f"{self.tenant} {self.priority} {seed}")
        now, number = random.expovariate(self.per_second), 0
        while now < seconds:
            yield now, f"{self.tenant}-{self.priority}-{number}", self
            now += random.expovariate(self.per_second)
            number += 1


@dataclass
class Seen:
    """What came of the requests, each by its id."""

    sent: dict[str, Submit] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)
    """Seconds to the first token."""
    finished: dict[str, float] = field(default_factory=dict)
    rejected: dict[str, Rejected] = field(default_factory=dict)
    num_tokens: dict[str, int] = field(default_factory=dict)

    def of(self, tenant: str, priority: PriorityClass | None = None) -> list[str]:
        return [
            name
            for name, submit in self.sent.items()
            if submit.tenant == tenant and priority in (None, submit.priority)
        ]

    def ttft(self, tenant: str, share: float, priority: PriorityClass | None = None) -> float:
        """A percentile of a tenant's seconds to the first token; whoever had none waited for ever."""
        waits = sorted(self.waits.get(name, float("inf")) for name in self.of(tenant, priority))
        return waits[min(len(waits) - 1, int(share * len(waits)))]


class Traffic:
    def __init__(
        self, max_rows: int, depth: int = 1, num_blocks: int = 0, costs: Costs = DEVICE, **limits: object
    ) -> None:
        self.now = 0.0
        self._costs = costs
        self.runner = NullRunner(range(1000), max_rows, depth=depth)
        self.scheduler = Scheduler(
            limits=EngineLimits(context_length=4096, vocab_size=1000, max_rows=max_rows, **limits),  # type: ignore[arg-type]
            pool=BlockPool(num_blocks or max_rows * 64),
            slots=SlotTable(0, self.runner.load),
            eos_ids=(),
            token_bytes=[b""] * 1000,
            environment=EngineEnvironment("engine-0", "first", lambda: self.now, lambda: self.now),
        )
        self.core = EngineCore(self.scheduler, self.runner)
        self.seen = Seen()
        self.waits_predicted: dict[str, float] = {}

    def run(self, senders: list[Sender], seconds: float, seed: int = 1) -> Seen:
        """Send for so many seconds, and look for a little longer. What was seen since the beginning.

        Then all that is left is aborted.
        """
        arrivals = merge(*(sender.times(seconds, seed) for sender in senders), key=lambda arrival: arrival[0])
        arrival = next(arrivals, None)
        begin = self.now
        while arrival is not None or (self.core.has_work and self.now - begin < 1.25 * seconds):
            if arrival is not None and not self.core.has_work:
                self.now = max(self.now, begin + arrival[0])
            while arrival is not None and begin + arrival[0] <= self.now:
                self.send(begin + arrival[0], arrival[1], arrival[2])
                arrival = next(arrivals, None)
            self.step()
        for name in self.seen.sent:
            self.core.abort(name)
        while self.core.has_work:
            self.step()
        self.scheduler.check_integrity()
        return self.seen

    def send(self, at: float, name: str, sender: Sender) -> Rejected | None:
        # No two prompts begin alike: nothing is found in the prefix cache.
        random = Random(name)
        submit = Submit(
            request_id=name,
            tenant=sender.tenant,
            prompt_ids=[random.randrange(1000) for _ in range(sender.prompt_len)],
            sampling=SamplingParams(max_tokens=sender.max_tokens, ignore_eos=True),
            priority=sender.priority,
            submitted_at=at,
        )
        self.seen.sent[name] = submit
        self.waits_predicted[name] = self.scheduler.load_shedder.predicted_wait(
            sender.priority, sender.tenant, sender.prompt_len
        )
        rejected = self.core.submit(submit)
        if rejected is not None:
            self.seen.rejected[name] = rejected
        return rejected

    def step(self) -> None:
        counters = self.scheduler.counters
        before = (counters.prefill_tokens, counters.decode_tokens)
        outputs = self.core.step()
        prefill, decode = counters.prefill_tokens - before[0], counters.decode_tokens - before[1]
        if prefill or decode:
            costs = self._costs
            self.now += costs.step + costs.prefill * prefill + costs.decode * decode
        seen = self.seen
        for chunk in outputs.chunks:
            if chunk.token_ids:
                waited = self.now - seen.sent[chunk.request_id].submitted_at
                seen.waits.setdefault(chunk.request_id, waited)
            count = seen.num_tokens.get(chunk.request_id, 0)
            seen.num_tokens[chunk.request_id] = count + len(chunk.token_ids)
        for finished, _ in outputs.finished:
            seen.finished[finished.request_id] = self.now
        for rejected in outputs.rejected:
            seen.rejected[rejected.request_id] = rejected
