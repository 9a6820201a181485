"""Computes waiting and step times of one replica by queueing theory, without simulating it.

The number of requests in a replica is a birth-death process. Requests arrive at rate l (a Poisson process).
With n of them running, a step takes T(n), every row draws one token in it, and one of n rows ends after O
tokens on average: requests leave at rate n / (O T(n)), until n reaches the rows c; from then on requests
wait, and the rate stays c / (O T(c)). So

    p(n) ~ product over k = 1..n of  l O T(k) / k        (M/M/c with a service rate that depends on the load)
    T(n) = (1 - q) step(n rows) + q step(n rows and the prompts that arrived),  q = 1 - exp(-l T)

    time to first token   the rest of the step that runs, the next one (planned already), its own step with
                          its prompt and those that arrive beside it; in a full replica, the wait for a row,
                          which is exponential with rate c / (O T(c)) - l; on an adapter that is not loaded,
    the load time between tokens   steps with prompts and steps without, by how many rows see them

Lengths are exponential where the process needs them to be (outputs), and log-normal for prompts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from engine.planner.popularity import Popularity
from engine.planner.step_model import StepModel, StepWork
from engine.planner.workload import PROMPT_SIGMA, AdapterLoad, EngineLimits, Load

Floats = NDArray[np.float64]
NUM_READERS = 4
"""Threads of an engine that read adapters from disk; one thread loads them into slots."""
_ITERATIONS = 60
"""At most; both accuracies are reached in half as many."""
_STEP_ACCURACY_S = 1e-8
_RATE_ACCURACY = 1e-7
_QUANTILES = (np.arange(24) + 0.5) / 24


@dataclass(frozen=True, slots=True)
class AdapterMemory:
    """Where a replica finds its adapters."""

    one_bytes: int
    """Of one adapter, on all GPUs of the replica together."""
    resident: int
    host: int
    """Adapters cached in host memory."""
    load_s: float
    """From host memory into a slot."""
    read_s: float
    """From disk into host memory, before that."""


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """What one replica does under its load. Times in seconds."""

    utilisation: float
    """Load over the largest that it could take: from 1 on, the queue grows without end."""
    max_requests_per_s: float
    rows: float
    """Running on average."""
    wait_share: float
    """Share of requests that wait for a row."""
    ttft_p50: float
    ttft_p99: float
    token_p50: float
    token_p99: float
    miss_share: float
    """Share of requests whose adapter is not in a slot."""
    loader_utilisation: float
    distinct: float
    """Adapters in a step, on average."""


class ReplicaQueue:
    """One replica: its rows, its adapters and its step times."""

    def __init__(
        self,
        model: StepModel,
        limits: EngineLimits,
        rows: int,
        load: Load,
        adapters: AdapterLoad,
        memory: AdapterMemory,
    ) -> None:
        """`adapters` are those of this replica alone; `rows` is what its settings and its memory allow."""
        self._model = model
        self._max_batch_tokens = limits.max_batch_tokens
        self._rows = rows
        self._load = load
        self._rank = adapters.rank if adapters.count else 0
        self._memory = memory
        self._numbers = np.arange(1, rows + 1, dtype=np.float64)
        popularity = Popularity(adapters.count, adapters.zipf)
        self._distinct = np.minimum(popularity.distinct(self._numbers), max(memory.resident, 0))
        self._misses = popularity.miss_share(memory.resident)
        self._disk_misses = popularity.miss_share(memory.resident + memory.host)
        self._prompts = _log_normal(load.prompt_tokens, PROMPT_SIGMA)
        self._plain = self._seconds(0.0)

    def figures(self, requests_per_s: float) -> QueueFigures:
        """Returns what the replica does with `requests_per_s` of the load."""
        most = self._max_requests_per_s()
        steps, _ = self._step_times(requests_per_s)
        reading = self._disk_misses * self._memory.read_s / NUM_READERS
        loader = requests_per_s * max(self._misses * self._memory.load_s, reading)
        utilisation = requests_per_s / most
        if utilisation >= 1 or loader >= 1:
            return self._overloaded(utilisation, most, loader)
        chances, waiting = self._occupancy(requests_per_s, steps)
        running = np.concatenate([[0.0], self._numbers])
        mean_rows = float((chances * running).sum() + waiting * self._rows)
        ttft = self._first_tokens(requests_per_s, chances, waiting, steps, loader)
        tokens = self._between_tokens(requests_per_s, chances, waiting, steps)
        return QueueFigures(
            utilisation, most, mean_rows, waiting, ttft(0.5), ttft(0.99), tokens(0.5), tokens(0.99),
            self._misses, loader, float(np.interp(mean_rows, self._numbers, self._distinct)),
        )  # fmt: skip

    def _overloaded(self, utilisation: float, most: float, loader: float) -> QueueFigures:
        last = float(self._step_times(most)[0][-1])
        endless = float("inf")
        return QueueFigures(
            utilisation, most, self._rows, 1.0, endless, endless, last, endless, self._misses, loader,
            float(self._distinct[-1]),
        )  # fmt: skip

    # Steps ----------------------------------------------------------------------------------------------

    def _seconds(self, prompt_tokens: float | Floats) -> Floats:
        """Returns the seconds of steps with 1, 2, ... rows, and prompts besides."""
        load = self._load
        return self._model.seconds(
            StepWork(
                rows=self._numbers,
                context=load.mean_context,
                prompt_tokens=prompt_tokens,
                prompt_context=load.prompt_tokens / 2,
                distinct=self._distinct,
                adapter_bytes=self._distinct * self._memory.one_bytes,
                largest_rank=self._rank,
                uneven=1.0,
            )
        )

    def _step_times(self, requests_per_s: float) -> tuple[Floats, Floats]:
        """Returns the mean seconds of steps, and of those with prompts, for 1, 2, ... rows.

        A step can take no more prompt tokens than its budget: where more arrive, the replica is full.
        """
        mean = busy = self._plain
        for _ in range(_ITERATIONS):
            with_prompts = -np.expm1(-requests_per_s * mean)
            tokens = requests_per_s * mean * self._load.prompt_tokens / np.maximum(with_prompts, 1e-12)
            busy = self._seconds(np.minimum(tokens, self._max_batch_tokens))
            following = (1 - with_prompts) * self._plain + with_prompts * busy
            if np.abs(following - mean).max() < _STEP_ACCURACY_S:
                break
            mean = (mean + following) / 2
        return mean, busy

    def _max_requests_per_s(self) -> float:
        """Returns the rate at which requests leave a full replica while others wait."""
        low, high = 0.0, self._rows / (self._load.output_tokens * float(self._plain[-1]))
        for _ in range(_ITERATIONS):
            if high - low < _RATE_ACCURACY * high:
                break
            middle = (low + high) / 2
            steps, _ = self._step_times(middle)
            leaves = self._rows / (self._load.output_tokens * float(steps[-1]))
            prompts = middle * float(steps[-1]) * self._load.prompt_tokens
            fits = middle < leaves and prompts < self._max_batch_tokens - self._rows
            low, high = (middle, high) if fits else (low, middle)
        return low

    # Occupancy ------------------------------------------------------------------------------------------

    def _occupancy(self, requests_per_s: float, steps: Floats) -> tuple[Floats, float]:
        """Returns the probabilities of 0 ... c - 1 requests and a free row, c running, and of some waiting.

        The first array has c + 1 entries: an arrival that finds c running waits.
        """
        factors = requests_per_s * self._load.output_tokens * steps / self._numbers
        logs = np.concatenate([[0.0], np.cumsum(np.log(factors))])
        weights = np.exp(logs - logs.max())
        beyond = weights[-1] * factors[-1] / (1 - factors[-1])
        total = weights.sum() + beyond
        chances = weights / total
        waiting = float(beyond / total + chances[-1])
        chances[-1] = 0.0
        return chances, waiting

    def _first_tokens(
        self, requests_per_s: float, chances: Floats, waiting: float, steps: Floats, loader: float
    ) -> Callable[[float], float]:
        """Returns the quantile function of the time to the first token."""
        load, memory = self._load, self._memory
        prompts = self._prompts
        at = np.concatenate([[0], np.arange(self._rows)])  # the number of rows before, as an index of steps
        before = np.where(np.arange(self._rows + 1) > 0, steps[at], 0.0)
        every = np.minimum(np.arange(self._rows + 1), self._rows - 1)
        own = np.stack([self._prefill(prompt)[every] for prompt in prompts])
        # residual of the running step: uniform; then the planned one; then its own
        base = before[None, :, None] * (1 + _QUANTILES[None, None, :]) + own[:, :, None]
        weight = np.broadcast_to(chances[None, :, None] / (len(prompts) * len(_QUANTILES)), base.shape)
        values, weights = [base.ravel()], [weight.ravel()]
        if waiting > 0:
            full = float(steps[-1])
            drain = self._rows / (load.output_tokens * full) - requests_per_s
            waits = -np.log1p(-_QUANTILES) / drain
            late = waits[None, :] + 1.5 * full + own[:, -1][:, None]
            values.append(late.ravel())
            weights.append(np.full(late.size, waiting / late.size))
        times, mass = np.concatenate(values), np.concatenate(weights)
        if self._misses:
            # One load at a time: a cold request also waits for loads before its own (M/D/1).
            queued = loader / (2 * (1 - loader)) * memory.load_s
            cold = memory.load_s + queued
            disk = min(1.0, self._disk_misses / self._misses)
            times = np.concatenate([times, times + cold, times + cold + memory.read_s])
            mass = np.concatenate(
                [mass * (1 - self._misses), mass * self._misses * (1 - disk), mass * self._misses * disk]
            )
        return _quantiles(times, mass)

    def _prefill(self, prompt: float) -> Floats:
        """Returns the seconds of the steps that compute one prompt, for 1, 2, ... rows."""
        room = self._max_batch_tokens - self._numbers
        whole = np.floor(prompt / room)
        return whole * self._seconds(room) + self._seconds(prompt - whole * room)

    def _between_tokens(
        self, requests_per_s: float, chances: Floats, waiting: float, steps: Floats
    ) -> Callable[[float], float]:
        """Returns the quantile function of the time between two tokens of a row."""
        rows = chances[1:].copy()
        rows[-1] += waiting
        rows = rows * self._numbers  # what rows see, not what steps are
        arrived = requests_per_s * steps
        values, weights = [self._plain], [rows * np.exp(-arrived)]
        chance = np.exp(-arrived)
        for number in range(1, 13):
            chance = chance * arrived / number
            for prompt in self._prompts:  # the longest decide the slowest steps
                tokens = prompt + (number - 1) * self._load.prompt_tokens
                values.append(self._seconds(np.minimum(tokens, self._max_batch_tokens - self._numbers)))
                weights.append(rows * chance / len(self._prompts))
        return _quantiles(np.concatenate(values), np.concatenate(weights))


def _log_normal(mean: float, sigma: float) -> Floats:
    """Returns lengths that are equally likely, of a log-normal distribution."""
    location = np.log(mean) - sigma**2 / 2
    deviations = np.array([NormalDist().inv_cdf(float(share)) for share in _QUANTILES])
    return np.asarray(np.exp(location + sigma * deviations))


def _quantiles(values: Floats, weights: Floats) -> Callable[[float], float]:
    order = np.argsort(values)
    sums = np.cumsum(weights[order])
    sorted_values = values[order]

    def quantile(share: float) -> float:
        place = int(np.searchsorted(sums, share * sums[-1]))
        return float(sorted_values[min(place, len(sorted_values) - 1)])

    return quantile
