"""Generates one background response under its lease, and stores how it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import structlog

from api.errors import response_for
from api.openai.answer import AnswerDelta
from api.openai.answer_trace import trace_background
from api.openai.outcome import OutcomeRecorder
from api.openai.reservation import reserve
from api.openai.respond import new_answer, released
from api.openai.service_tier import requested_tier
from api.openai.validation import ValidatedRequest
from api.responses.bodies import ended, failed, shown
from api.responses.event_log import EventLog
from api.responses.exchange import Exchange
from api.responses.generation import validated_exchange
from api.responses.schemas import ResponseRequest
from api.responses.turns import Turn, state_of
from api.services import Services
from conversations.background.service import ClaimedResponse
from conversations.errors import LeaseLost, TooManyAttempts
from conversations.limits import BACKGROUND_SECONDS
from conversations.owner import Owner
from conversations.responses.service import ResponseRecord
from db.errors import DatabaseUnavailable
from engine.client import RequestRejected
from tenants.context import TenantContext
from tenants.errors import AccountSuspended
from tenants.key_contexts import KeyContexts

MAX_ATTEMPTS = 5
"""Claims of one response. A process that dies at it each time must not do so for ever."""
RETRY_SECONDS = 600.0
"""For how long a refusal that may pass, such as a rate limit, is waited out."""
STORE_SECONDS = 60.0
"""For how long a database that is away is waited for at the end."""
MAX_PAUSE = 10.0

Json = dict[str, Any]
_decoder = msgspec.json.Decoder(ResponseRequest)
log = structlog.get_logger(__name__)


class BackgroundAttempt:
    """One attempt at a background response: from its lease to its end."""

    def __init__(
        self,
        services: Services,
        callers: KeyContexts,
        claimed: ClaimedResponse,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._services = services
        self._callers = callers
        self._claimed = claimed
        self._clock = clock
        self._num_reserved = 0
        self._request = _decoder.decode(claimed.request)
        self._log = EventLog(state_of(services).background, claimed) if self._request.stream else None

    async def run(self) -> str:
        """Generates and stores the response; returns its status. Raises LeaseLost, DatabaseUnavailable."""
        claimed, began = self._claimed, self._clock()
        pause = 0.25
        while True:
            try:
                return await self._generate()
            except (LeaseLost, DatabaseUnavailable):
                raise
            except Exception as error:  # noqa: BLE001  becomes the response's error
                now = self._clock()
                is_over = now > claimed.record.submitted_at + BACKGROUND_SECONDS
                if is_over or now > began + RETRY_SECONDS or not _may_pass(error):
                    return await self._fail(error)
                wait = getattr(error, "retry_after", None) or pause
            log.info("a background response waits", id=claimed.record.id, seconds=wait)
            await asyncio.sleep(min(wait, MAX_PAUSE))
            pause = min(pause * 2, MAX_PAUSE)

    async def _generate(self) -> str:
        claimed, services = self._claimed, self._services
        if claimed.fence > MAX_ATTEMPTS:
            raise TooManyAttempts(f"the response could not be completed in {MAX_ATTEMPTS} attempts")
        caller = await self._callers.of(claimed.tenant_id, claimed.key_id)
        if caller.billing_state == "suspended":
            raise AccountSuspended
        exchange = await self._exchange(caller)
        validated = await validated_exchange(services, exchange)
        outcome = OutcomeRecorder(caller, services.sla, services.metrics)
        outcome.tier = requested_tier(self._request.service_tier, caller)
        reserved = await reserve(self._renamed(validated), outcome.tier, services.quotas, services.prices)
        submission = reserved.submission
        outcome.tier = submission.tier
        output = exchange.output()
        body = exchange.body(submission.model, submission.tier.value)
        if self._log is not None:
            self._log.lifecycle("in_progress", shown(body, []))

        def take(deltas: list[AnswerDelta]) -> bool:
            for delta in deltas:
                for event in output.take(delta):
                    if self._log is not None:
                        self._log.add(event)
            return True

        with released(reserved):
            reserved.trace = trace_background(services.tracing, submission)
            answer = new_answer(services, reserved, outcome, time.perf_counter(), is_chat=True)
            await answer.submit(services.pools[submission.base].engine, services.request_metadata)
            try:
                await self._while_logging(answer.read(take))
            except Exception as error:
                outcome.failed(error)
                raise
        return await self._finish(exchange, ended(body, output.finish_reason, answer.usage), output.items)

    async def _exchange(self, caller: TenantContext) -> Exchange:
        """Collects the context again: this process may not be the one that queued the response."""
        state, owner, record = state_of(self._services), Owner.of(caller), self._claimed.record
        if record.conversation_id is not None:
            earlier = await state.conversations.context(owner, record.conversation_id)
        elif record.previous_id is not None:
            earlier = await state.responses.context(owner, record.previous_id)
        else:
            earlier = []
        turn = Turn(earlier, record.input)
        return Exchange(record.id, record.submitted_at, self._request, caller, turn, is_stored=True)

    def _renamed(self, validated: ValidatedRequest) -> ValidatedRequest:
        """Returns the request with an id for its reservation that no earlier attempt has used."""
        self._num_reserved += 1
        if self._claimed.fence == 1 and self._num_reserved == 1:
            return validated
        again = f"{validated.id}.{self._claimed.fence}.{self._num_reserved}"
        return msgspec.structs.replace(validated, reservation_id=again)

    async def _while_logging(self, reading: Coroutine[Any, Any, None]) -> None:
        """Reads the answer, and stores its events meanwhile."""
        if self._log is None:
            await reading
        else:
            await self._log.keep_while(reading)

    async def _finish(self, exchange: Exchange, body: Json, output: list[Json]) -> str:
        return await self._store(Owner.of(exchange.caller), exchange.record(body, output))

    async def _fail(self, error: Exception) -> str:
        claimed = self._claimed
        log.info("a background response failed", id=claimed.record.id, error=type(error).__name__)
        record = replace(claimed.record, status="failed", body=failed(claimed.record.body, error))
        # The key may be gone; the owner decides nothing but where the row is.
        owner = Owner(claimed.tenant_id, claimed.project_id, claimed.key_id, timedelta(0))
        return await self._store(owner, record)

    async def _store(self, owner: Owner, record: ResponseRecord) -> str:
        queue = state_of(self._services).background
        events = []
        if self._log is not None:
            self._log.lifecycle(record.status, shown(record.body, record.output))
            events = self._log.taken()
        began = self._clock()
        while True:
            try:
                await queue.finish(self._claimed, owner, record, events)
                return record.status
            except DatabaseUnavailable:
                if self._clock() > began + STORE_SECONDS:
                    raise
            await asyncio.sleep(1.0)


def _may_pass(error: Exception) -> bool:
    """Returns whether the same request can succeed later."""
    if isinstance(error, RequestRejected) and error.code == "duplicate":
        return True  # the attempt of a process that has died is still being aborted
    shown = response_for(error)
    return shown.retry and shown.code != "internal_error"
