"""What a request may take, before it runs; what it took, once it has ended.

Owns the choice of the class that serves it, the amounts that are reserved, and that every reservation ends,
whichever way the request does: settled with what the engine counted, cancelled when nothing ran, or left to
the engine's journal when the engine has gone. Refuses to know HTTP, and how limits and prices are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from api.errors import InvalidValue
from api.openai.submission import Submission, ValidatedRequest
from billing.pricing import PriceBook
from billing.rates import Rate
from engine.client import EngineGone, Generation
from engine.protocol import PriorityClass, Usage
from tenants.context import TenantContext
from tenants.limits.kinds import Amounts
from tenants.quotas import Contract, Quotas, Reservation

ASSUMED_OUTPUT = 1024
"""Tokens of a choice that rates are charged ahead for when the caller does not say how many it wants. Budgets
reserve all that the context has room for.
"""


class RequestReservation:
    """A reservation and the submission it is for. `follow` or `release` it, or the reservation is held until
    it expires.
    """

    def __init__(self, submission: Submission, rate: Rate, reservation: Reservation, quotas: Quotas) -> None:
        self.submission = submission
        self.reservation = reservation
        self._rate = rate
        self._quotas = quotas
        self._num_open: int | None = None
        """Generations that have not ended; None before there are any."""
        self._used: list[Usage] = []
        self._lost = False
        """Whether the engine has gone with what it counted."""

    def follow(self, generations: Sequence[Generation]) -> None:
        """Settle with what these come to once all have ended, whoever still reads them then."""
        if self._num_open is not None or not generations:
            return
        self._num_open = len(generations)
        for generation in generations:
            generation.when_ended(self._ended)

    def release(self) -> None:
        """Give the reservation back, unless generations are followed: then their end does."""
        if self._num_open is None:
            self._num_open = 0
            self._quotas.cancel(self.reservation)

    def _ended(self, generation: Generation) -> None:
        assert self._num_open
        self._num_open -= 1
        if generation.usage is not None:
            self._used.append(generation.usage)
        elif isinstance(generation.error, EngineGone):
            self._lost = True
        if not self._num_open:
            # In the loop's next turn, behind the answers of this one: nobody waits for it.
            asyncio.get_running_loop().call_soon(self._settle)

    def _settle(self) -> None:
        if self._lost:
            # What the ledger will bill is more than what came here; only the journal knows it.
            self._quotas.leave(self.reservation)
            return
        if not self._used:
            self._quotas.cancel(self.reservation)
            return
        self._quotas.settle(
            self.reservation,
            Amounts(
                requests=1,
                input_tokens=sum(usage.prompt_tokens for usage in self._used),
                output_tokens=sum(usage.completion_tokens for usage in self._used),
                spend=sum(self._rate.cost(usage) for usage in self._used),
            ),
        )


async def book(
    draft: ValidatedRequest, asked: PriorityClass, quotas: Quotas, prices: PriceBook
) -> RequestReservation:
    """Reserve for the draft, and settle which class serves it: the one asked for, or `default`.

    Raises:
        RateLimited, QuotaExhausted, QuotaUnavailable: there is no room. Nothing is reserved then.
        DatabaseUnavailable: the prices cannot be looked up.
    """
    terms = draft.caller.plan.terms
    bound = terms[asked].contracted_tokens_per_minute
    on_adapter = draft.model.adapter_id is not None
    rate = await prices.rate(terms[asked].price_percent, draft.submitted_at, on_adapter)
    otherwise = rate
    if bound is not None:
        percent = terms[PriorityClass.DEFAULT].price_percent
        otherwise = await prices.rate(percent, draft.submitted_at, on_adapter)
    worst, expected = _amounts(draft, rate if rate.percent >= otherwise.percent else otherwise)
    reservation = await quotas.reserve(
        draft.id,
        draft.caller,
        draft.model.name,
        worst,
        expected,
        None if bound is None else Contract(asked.value, bound),
        parts=len(draft.prompts),
    )
    served = asked
    if bound is not None and not reservation.within_contract:
        served, rate = PriorityClass.DEFAULT, otherwise
    return RequestReservation(draft.submission(served, rate.label), rate, reservation, quotas)


def asked_for(service_tier: str | None, caller: TenantContext) -> PriorityClass:
    """The class meant. `auto`, or nothing, is the best that the plan offers without being asked: priority
    where it has that, never flex; unless the project says it is the default class.

    Raises InvalidValue when the plan does not offer it, or not to the project.
    """
    terms = caller.plan.terms
    if service_tier is None or service_tier == "auto":
        best = PriorityClass.PRIORITY if terms[PriorityClass.PRIORITY].allowed else PriorityClass.DEFAULT
        return PriorityClass.DEFAULT if caller.auto_tier == PriorityClass.DEFAULT else best
    tier = PriorityClass(service_tier)
    if not terms[tier].allowed:
        raise InvalidValue(
            f"The service tier '{tier}' is not offered by your plan, or not to this project.", "service_tier"
        )
    return tier


def _amounts(draft: ValidatedRequest, rate: Rate) -> tuple[Amounts, Amounts | None]:
    """The most the request can take; and what it is expected to, where that is not the same."""
    n = draft.n
    prompt_lens = [len(prompt_ids) for prompt_ids in draft.prompts]
    most = [sampling.max_tokens * n for sampling in draft.sampling]
    worst = Amounts(
        requests=1,
        input_tokens=sum(prompt_lens),
        output_tokens=sum(most),
        spend=sum(
            rate.worst(prompt_len, output) for prompt_len, output in zip(prompt_lens, most, strict=True)
        ),
    )
    if draft.bounded:
        return worst, None
    assumed = sum(min(ASSUMED_OUTPUT * n, output) for output in most)
    return worst, Amounts(1, worst.input_tokens, assumed, worst.spend)
