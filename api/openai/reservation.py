"""Reserves quota for a generation request, and settles the reservation when its generations have ended.

Every reservation ends, however the request ends: settled with the tokens that the engine counted,
cancelled when nothing ran, or left to the usage journal when the engine has gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from api.openai.submission import Submission, build_submission
from api.openai.validation import ValidatedRequest
from billing.pricing import PriceBook
from billing.rates import BATCH_TIER, Rate
from engine.client import EngineGone, Generation
from engine.protocol import PriorityClass, Usage
from tenants.limits.kinds import Amounts
from tenants.quotas import Contract, Quotas, Reservation

if TYPE_CHECKING:
    from api.openai.answer_trace import AnswerTrace

ASSUMED_OUTPUT = 1024
"""Output tokens per choice that rate limits reserve for a request without `max_tokens`. Budgets reserve all
that the context has room for.
"""


class RequestReservation:
    """A reservation and the submission that it is for. Call `follow` or `release`, or it is held until it
    expires.
    """

    def __init__(self, submission: Submission, rate: Rate, reservation: Reservation, quotas: Quotas) -> None:
        self.submission = submission
        self.reservation = reservation
        self.trace: AnswerTrace | None = None
        """The answer's span; None when the request is not traced."""
        self._rate = rate
        self._quotas = quotas
        self._num_open: int | None = None
        """Generations that have not ended; None before there are any."""
        self._used: list[Usage] = []
        self._lost = False
        """Whether the engine has gone with what it counted."""

    def follow(self, generations: Sequence[Generation]) -> None:
        """Settles with the usage of these generations once all have ended, even if the client has left."""
        if self._num_open is not None or not generations:
            return
        self._num_open = len(generations)
        for generation in generations:
            generation.when_ended(self._ended)

    def release(self) -> None:
        """Cancels the reservation, unless generations are followed: then their end settles it."""
        if self._num_open is None:
            self._num_open = 0
            self._quotas.cancel(self.reservation)
            if self.trace is not None:
                self.trace.dropped(time.perf_counter())

    @property
    def used(self) -> Amounts:
        """What the generations that have ended were billed."""
        return Amounts(
            requests=1,
            input_tokens=sum(usage.prompt_tokens for usage in self._used),
            output_tokens=sum(usage.completion_tokens for usage in self._used),
            spend=sum(self._rate.cost(usage) for usage in self._used),
        )

    def _ended(self, generation: Generation) -> None:
        assert self._num_open
        self._num_open -= 1
        if generation.usage is not None:
            self._used.append(generation.usage)
        elif isinstance(generation.error, EngineGone):
            self._lost = True
        if not self._num_open:
            # In the loop's next turn, behind the responses of this one: no client waits for it.
            asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        if self.trace is not None:
            self.trace.settled(self._used)
        if self._lost:
            # The ledger will bill more than what arrived here; only the journal knows how much.
            self._quotas.leave(self.reservation)
            return
        if not self._used:
            self._quotas.cancel(self.reservation)
            return
        self._quotas.settle(self.reservation, self.used)


async def reserve(
    request: ValidatedRequest, tier: PriorityClass, quotas: Quotas, prices: PriceBook
) -> RequestReservation:
    """Reserves what the request may use at most, in the tier that it asks for; beyond the tokens that the
    plan contracts for that tier, in the default tier.

    Raises:
        RateLimited, QuotaExhausted, QuotaUnavailable: there is no room. Nothing is reserved then.
        DatabaseUnavailable: the prices cannot be looked up.
    """
    terms = request.caller.plan.terms
    contracted = terms[tier].contracted_tokens_per_minute
    on_adapter, share = request.model.adapter_id is not None, request.model.share
    percent = terms[tier].price_percent
    rate = default_rate = await prices.rate(percent, request.submitted_at, on_adapter, share)
    if contracted is not None:
        percent = terms[PriorityClass.DEFAULT].price_percent
        default_rate = await prices.rate(percent, request.submitted_at, on_adapter, share)
    worst, expected = _amounts(request, rate if rate.percent >= default_rate.percent else default_rate)
    reservation = await quotas.reserve(
        request.reservation_id or request.id,
        request.caller,
        request.model.name,
        worst,
        expected,
        None if contracted is None else Contract(tier.value, contracted),
        parts=len(request.prompts),
    )
    if contracted is not None and not reservation.within_contract:
        tier, rate = PriorityClass.DEFAULT, default_rate
    return RequestReservation(build_submission(request, tier, rate.labels), rate, reservation, quotas)


async def reserve_batch_line(
    request: ValidatedRequest, attempt: str, quotas: Quotas, prices: PriceBook
) -> RequestReservation:
    """Reserves what a line of a batch may use at most, at the price of batches. `attempt` distinguishes runs
    of the same line: the reservation of a run whose process died expires without a charge, as the ledger
    bills the line once. Raises what `reserve` does.
    """
    percent = request.caller.plan.batch_price_percent
    model = request.model
    rate = await prices.rate(percent, request.submitted_at, model.adapter_id is not None, model.share)
    worst, expected = _amounts(request, rate)
    reservation = await quotas.reserve(
        f"{request.id}/{attempt}",
        request.caller,
        request.model.name,
        worst,
        expected,
        parts=len(request.prompts),
    )
    submission = build_submission(request, PriorityClass.FLEX, rate.labels, BATCH_TIER)
    return RequestReservation(submission, rate, reservation, quotas)


def _amounts(request: ValidatedRequest, rate: Rate) -> tuple[Amounts, Amounts | None]:
    """Returns the most that the request can use, and what it is expected to use where that differs."""
    n = request.n
    prompt_lens = [len(prompt_ids) for prompt_ids in request.prompts]
    most = [sampling.max_tokens * n for sampling in request.sampling]
    worst = Amounts(
        requests=1,
        input_tokens=sum(prompt_lens),
        output_tokens=sum(most),
        spend=sum(
            rate.worst(prompt_len, output) for prompt_len, output in zip(prompt_lens, most, strict=True)
        ),
    )
    if request.has_max_tokens:
        return worst, None
    assumed = sum(min(ASSUMED_OUTPUT * n, output) for output in most)
    return worst, Amounts(1, worst.input_tokens, assumed, worst.spend)
