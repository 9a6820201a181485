"""Keeps what a router knows of one replica: its last report, what was routed to it since, and how fast it
answers.

A report is up to half a second old, and a busy router sends many requests in that time. So requests of this
router count as soon as they are routed and until they end, and prompt tokens as a backlog, which the replica
works off at its measured rate.

A replica that works but is slow reports nothing unusual. So the time to its first tokens is compared with
that of the other replicas.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

OCCUPANCY_SECONDS = 0.2
"""What a full batch counts for beside an empty one, before any request waits: each of its steps takes
longer."""
ASSUMED_ROWS = 256
"""Of a replica's batch, until it has reported them."""
ASSUMED_LOAD_SECONDS = 0.5
"""For an adapter to be loaded, until the replica has measured it."""
ASSUMED_PROMPT_RATE = 10_000.0
"""Prompt tokens per second, until the replica has measured them."""
STEP_TOKENS = 2048
"""Prompt tokens that wait for no others: one step computes them."""
LATENCY_HALF_LIFE = 20.0
"""Seconds after which a measured latency counts half."""
CONFIDENT_AFTER = 8.0
"""Latencies, as far as they still count, from which on a comparison counts in full."""
SLOW_RATIO = 1.5
"""Latency relative to the other replicas up to which a replica does not count as slow."""
TRIED_AFTER = 25
"""Requests to each of the others after which a slow replica is tried again: it may have recovered."""
FIXED_TOKENS = 512
"""What a first token costs beside its prompt, in tokens of a prompt: latencies of unequal prompts are
compared by it."""
MAX_ASSUMED_ADAPTERS = 1024
"""Adapters, of those routed to it last, that a replica is assumed to hold if it does not report them."""
PRELOAD_INTERVAL = 10.0
"""Seconds after which a replica that lacks an adapter is to load it again."""
SEEN_AFTER = 1.0
"""Seconds after which a report knows of an adapter that was routed before."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What a replica reports of itself."""

    rows_total: int = ASSUMED_ROWS
    """Requests that its batch has room for."""
    rows_taken: int = 0
    """Requests that run or wait."""
    predicted_wait: Mapping[str, float] = field(default_factory=dict)
    """By priority class: seconds that a short request would wait now."""
    prompt_rate: float = 0.0
    """Prompt tokens per second, as measured; 0: not known."""
    load_seconds: float = 0.0
    """To load an adapter, on average; 0: not known."""
    resident: Container[str] | None = None
    """Digests of the adapters that are loaded or loading; None: it does not report them."""
    draining: bool = False
    """It takes no new requests."""


class DecayingMean:
    """A mean in which older values count less: half after each `half_life` seconds."""

    __slots__ = ("_at", "_half_life", "total", "weight")

    def __init__(self, half_life: float) -> None:
        self._half_life = half_life
        self._at = 0.0
        self.total = 0.0
        self.weight = 0.0
        """Number of values, as far as they still count."""

    def add(self, value: float, now: float) -> None:
        self.decay(now)
        self.total += value
        self.weight += 1.0

    def forget(self, other: DecayingMean) -> None:
        """Takes out the values of another mean with this half-life, all of which were added here too."""
        now = max(self._at, other._at)
        self.decay(now)
        other.decay(now)
        self.total = max(0.0, self.total - other.total)
        self.weight = max(0.0, self.weight - other.weight)

    def halved(self) -> DecayingMean:
        """Returns the mean of half as many such values."""
        half = DecayingMean(self._half_life)
        half._at, half.total, half.weight = self._at, self.total / 2, self.weight / 2
        return half

    def decay(self, now: float) -> None:
        """Lets `total` and `weight` decay up to `now`."""
        if now > self._at:
            share = 0.5 ** ((now - self._at) / self._half_life) if self.weight else 0.0
            self.total *= share
            self.weight *= share
            self._at = now


class ReplicaView:
    """One replica as a router sees it. Times are of the router's clock, in seconds."""

    __slots__ = (
        "_assumed",
        "_backlog",
        "_backlog_at",
        "_open_before",
        "_preloaded",
        "joined_at",
        "last_turn",
        "latency",
        "name",
        "num_open",
        "report",
        "reported_at",
    )

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.joined_at = now
        """What was learned of prefixes before does not hold: its cache was empty then."""
        self.report = ReplicaReport()
        self.reported_at = now
        self.latency = DecayingMean(LATENCY_HALF_LIFE)
        """Of first tokens, in seconds per token of the prompt and of `FIXED_TOKENS`."""
        self.last_turn = 0
        """Which of the router's requests was the last that went there."""
        self.num_open = 0
        """This router's requests there."""
        self._open_before = 0
        """`num_open` at the last report, which counts them."""
        self._backlog = 0.0
        """Prompt tokens that it had to compute at `_backlog_at`."""
        self._backlog_at = now
        # Adapters routed to it and when, the longest ago first.
        self._assumed: OrderedDict[str, float] = OrderedDict()
        # Adapters that it was asked to load and when, the longest ago first.
        self._preloaded: OrderedDict[str, float] = OrderedDict()

    def take(self, report: ReplicaReport, now: float) -> None:
        """Replaces the last report."""
        self.report = report
        self.reported_at = now
        self._open_before = self.num_open

    def routed(self, num_tokens: int, adapter: str | None, now: float) -> None:
        """Counts a request that was routed to it, with the prompt tokens that it has to compute."""
        self.num_open += 1
        self._backlog = self._backlog_left(now) + num_tokens
        self._backlog_at = max(now, self._backlog_at)
        if adapter is not None:
            self._assumed[adapter] = now
            self._assumed.move_to_end(adapter)
            if len(self._assumed) > MAX_ASSUMED_ADAPTERS:
                self._assumed.popitem(last=False)

    def ended(self) -> None:
        """Counts a request that was routed to it as ended."""
        self.num_open -= 1

    def begin_preload(self, adapter: str, now: float) -> bool:
        """Returns whether the replica should now be asked to load the adapter, which it lacks."""
        asked_at = self._preloaded.get(adapter)
        if asked_at is not None and now - asked_at < PRELOAD_INTERVAL:
            return False
        self._preloaded[adapter] = now
        self._preloaded.move_to_end(adapter)
        if len(self._preloaded) > MAX_ASSUMED_ADAPTERS:
            self._preloaded.popitem(last=False)
        return True

    def holds(self, adapter: str) -> bool:
        """Returns whether it has the adapter loaded, or loads it."""
        resident = self.report.resident
        if resident is not None and adapter in resident:
            return True
        routed_at = self._assumed.get(adapter)
        if routed_at is None:
            return resident is None and adapter in self._preloaded
        return resident is None or self.reported_at - routed_at < SEEN_AFTER

    def may_wait_for(self, adapter: str) -> bool:
        """Returns whether a request may have to wait until the adapter is loaded, also when another request
        has begun that.
        """
        resident = self.report.resident
        return not self.holds(adapter) if resident is None else adapter not in resident

    @property
    def occupancy(self) -> float:
        """Requests that it has, relative to the rows of its batch."""
        taken = self.report.rows_taken + self.num_open - self._open_before
        return max(0, taken) / max(1, self.report.rows_total)

    @property
    def load_seconds(self) -> float:
        return self.report.load_seconds or ASSUMED_LOAD_SECONDS

    def compute_seconds(self, num_tokens: float) -> float:
        """Returns the seconds that it takes to compute prompt tokens."""
        return num_tokens / self._prompt_rate

    def expected_wait(self, priority: str, now: float) -> float:
        """Returns the seconds that a request is expected to wait for others: by the report, and by what was
        routed since.
        """
        wait = self.report.predicted_wait.get(priority, 0.0)
        backlog = self._backlog_left(now) - STEP_TOKENS
        if backlog > 0:
            wait = max(wait, self.compute_seconds(backlog))
        return wait

    def cost(self, priority: str, now: float) -> float:
        """Returns what one more request loses by those that it has, in seconds: the wait for them, and what
        longer steps count for.
        """
        return self.expected_wait(priority, now) + OCCUPANCY_SECONDS * self.occupancy

    @property
    def _prompt_rate(self) -> float:
        return self.report.prompt_rate or ASSUMED_PROMPT_RATE

    def _backlog_left(self, now: float) -> float:
        return max(0.0, self._backlog - max(0.0, now - self._backlog_at) * self._prompt_rate)

    def answered(self, latency: float, everyone: DecayingMean, now: float, *, tried: bool) -> None:
        """Takes a latency, also into those of all replicas. `tried`: of a request that was to show whether it
        is still slow; if it is not, half of what is known of it is forgotten.
        """
        if tried and latency <= SLOW_RATIO * self._others(everyone, now)[0]:
            half = self.latency.halved()
            for mean in (self.latency, everyone):
                mean.forget(half)
        self.latency.add(latency, now)
        everyone.add(latency, now)

    def _others(self, everyone: DecayingMean, now: float) -> tuple[float, float]:
        """Returns the mean latency of the other replicas, and its weight."""
        self.latency.decay(now)
        everyone.decay(now)
        weight = everyone.weight - self.latency.weight
        total = everyone.total - self.latency.total
        return (total / weight, weight) if weight > 0.0 and total > 0.0 else (0.0, 0.0)

    def seconds_lost(self, everyone: DecayingMean, num_tokens: int, now: float) -> float:
        """Returns by how many seconds its first token for a prompt of `num_tokens` is later than those of the
        other replicas, as far as it is slower than they are; 0 unless it takes markedly longer.

        `everyone`: the latencies of all replicas, including this one's.
        """
        theirs, weight = self._others(everyone, now)
        own = self.latency
        if own.weight < 1.0 or weight < 1.0:
            return 0.0
        mean = own.total / own.weight
        if mean <= SLOW_RATIO * theirs:
            return 0.0
        confidence = min(1.0, own.weight / CONFIDENT_AFTER, weight / CONFIDENT_AFTER)
        return (mean - theirs) * (FIXED_TOKENS + num_tokens) * confidence
