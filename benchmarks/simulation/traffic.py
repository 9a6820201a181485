"""Generates a cluster's traffic in virtual time: tides, Zipf popularity, lengths, conversations.

    arrivals       a Poisson process whose rate follows a sine, the tide, of a given period
    adapters       Zipf's law over all adapters of all tenants; as many per tenant everywhere
    lengths        log-normal, as in `benchmarks.workload`
    conversations  a share of the requests continue one of the latest conversations: same adapter, and a
                   prompt that begins with all of its earlier tokens

Drawn a second at a time, so that memory does not grow with the length of a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.workload import SHAREGPT_OUTPUT, SHAREGPT_PROMPT, Lengths, zipf_shares

MAX_PROMPT = 8192
"""Conversations that would grow beyond it begin anew."""
OPEN_CONVERSATIONS = 4096


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """What is asked of the cluster."""

    rate: float
    """Requests per second, on average over a tide."""
    num_adapters: int
    num_tenants: int
    zipf: float = 1.0
    tide: float = 0.0
    """The rate swings by this share of itself up and down."""
    tide_seconds: float = 60.0
    """Of a day, which a run shortens to so many."""
    continued: float = 0.3
    """Share of the requests that continue a conversation."""
    prompt: Lengths = SHAREGPT_PROMPT
    output: Lengths = SHAREGPT_OUTPUT


@dataclass(slots=True)
class SimulatedRequest:
    """One request."""

    at: float
    adapter: int
    tenant: int
    prompt_len: int
    output_len: int
    conversation: int
    """Requests with the same number share prefixes."""
    number: int
    """Of the request, in the order of arrival."""


class Traffic:
    """Draws the same requests for every policy."""

    def __init__(self, options: TrafficOptions, seed: int) -> None:
        self._options = options
        self._rng = np.random.default_rng(seed)
        self._popularity = np.cumsum(zipf_shares(options.num_adapters, options.zipf))
        self._conversations: list[tuple[int, int, int]] = []
        """(number, adapter, tokens so far) of the latest."""
        self._num_conversations = self._num_requests = 0

    def until(self, end: float) -> Iterator[SimulatedRequest]:
        """Yields requests in the order of their arrival."""
        begin = 0.0
        while begin < end:
            seconds = min(1.0, end - begin)
            yield from self._slice(begin, seconds)
            begin += seconds

    def _slice(self, begin: float, seconds: float) -> Iterator[SimulatedRequest]:
        options, rng = self._options, self._rng
        phase = 2 * math.pi * (begin + seconds / 2) / options.tide_seconds
        rate = options.rate * (1 + options.tide * math.sin(phase))
        count = int(rng.poisson(rate * seconds))
        times = np.sort(rng.uniform(begin, begin + seconds, count)).tolist()
        places = np.searchsorted(self._popularity, rng.random(count)).clip(max=options.num_adapters - 1)
        prompts = options.prompt.draw(rng, count).tolist()
        outputs = options.output.draw(rng, count).tolist()
        continued = (rng.random(count) < options.continued).tolist()
        picks = rng.integers(0, OPEN_CONVERSATIONS, count).tolist()
        rows = zip(times, places.tolist(), prompts, outputs, continued, picks, strict=True)
        for at, adapter, prompt_len, output_len, continues, pick in rows:
            yield self._request(at, adapter, prompt_len, output_len, continues, pick)

    def _request(
        self, at: float, adapter: int, prompt_len: int, output_len: int, continues: bool, pick: int
    ) -> SimulatedRequest:
        conversations = self._conversations
        number = self._num_conversations
        place = len(conversations)
        if continues and pick < place:
            known, known_adapter, tokens = conversations[pick]
            if tokens + prompt_len <= MAX_PROMPT:
                number, adapter, prompt_len, place = known, known_adapter, tokens + prompt_len, pick
        if number == self._num_conversations:
            self._num_conversations += 1
            place = place if place < OPEN_CONVERSATIONS else pick
        entry = (number, adapter, prompt_len + output_len)
        if place < len(conversations):
            conversations[place] = entry
        else:
            conversations.append(entry)
        tenant = adapter % self._options.num_tenants  # a tenant has popular adapters and others
        self._num_requests += 1
        return SimulatedRequest(at, adapter, tenant, prompt_len, output_len, number, self._num_requests)
