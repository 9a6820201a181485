"""Runs one line of a batch through the same steps as a request over HTTP, and retries it until it has a
result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import msgspec
import structlog

from api.batches.endpoints import ENDPOINTS
from api.batches.fair_slots import AdaptiveLimit
from api.batches.lines import answered, decode_body, decode_line, line_seed, refused, request_id
from api.errors import GenerationAborted, GrammarChecksBusy, response_for
from api.openai.answer import Answer
from api.openai.answer_trace import trace_background
from api.openai.outcome import OutcomeRecorder
from api.openai.reservation import reserve_batch_line
from api.openai.validation import ValidatedRequest
from api.services import Services
from batches.lease import BatchLease, LineResult
from db.errors import DatabaseUnavailable
from engine.client import EngineGone, RequestRejected
from engine.protocol import Usage
from tenants.context import TenantContext
from tenants.errors import QuotaUnavailable, RateLimited
from tokenization.grammars.errors import GrammarsUnavailable

log = structlog.get_logger(__name__)

PASSING = (
    EngineGone,
    GenerationAborted,
    RateLimited,
    QuotaUnavailable,
    DatabaseUnavailable,
    GrammarChecksBusy,
    GrammarsUnavailable,
)
"""Errors after which a line is retried for as long as its batch may run."""
_PASSING_CODES = frozenset({"overloaded", "draining", "duplicate", "adapter_loading"})
"""The same, of the engine's rejections. Of a line that runs again after its process died, the engine may
still have the request: `duplicate`.
"""
MAX_ATTEMPTS = 8
"""After other errors of the service."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 15.0
"""Seconds between two attempts, which double."""


class Line(NamedTuple):
    """A line that has begun."""

    number: int
    content: bytes
    submitted_at: datetime


class NoOutcome(OutcomeRecorder):
    """Records nothing: service levels are promised to requests that a client waits for."""

    def answered(self, first_token_seconds: float | None, tokens_per_second: float | None = None) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        pass


class LineRuns:
    """Runs the lines of one batch."""

    def __init__(self, services: Services, lease: BatchLease, limit: AdaptiveLimit) -> None:
        self._services = services
        self._batch_id = lease.batch.id
        self._url = lease.batch.endpoint
        self._endpoint = ENDPOINTS[self._url]
        self._fence = lease.fence
        self._limit = limit
        self._num_attempts = 0
        """Of all lines, so that each attempt has a reservation of its own."""

    async def run(
        self, line: Line, caller: Callable[[], TenantContext | None], may_retry: Callable[[], bool]
    ) -> LineResult | None:
        """Returns the line's result; None if it has none when `may_retry` says that it must stop, or when
        there is no `caller` any more.

        When cancelled, aborts the generation.
        """
        pause, attempts = FIRST_PAUSE, 0
        while True:
            who = caller()
            if who is None:
                return None
            try:
                result = await self._attempt(line, who)
            except Exception as error:  # noqa: BLE001  becomes the line's result
                attempts += not _is_passing(error)
                if (not response_for(error).retry and not _is_passing(error)) or attempts >= MAX_ATTEMPTS:
                    return self._failed(line, error)
                log.info(
                    "line is retried", batch_id=self._batch_id, line=line.number, error=repr(error)[:200]
                )
                pause = await self._rest(error, pause, may_retry)
                if not may_retry():
                    return None
            else:
                self._limit.taken()
                return result

    async def _rest(self, error: Exception, pause: float, may_retry: Callable[[], bool]) -> float:
        """Waits before the next attempt; returns the pause after that."""
        retry_after: float | None = getattr(error, "retry_after", None)
        if isinstance(error, RequestRejected) and error.code == "overloaded":
            self._limit.refused(retry_after)
        until = time.monotonic() + min(max(pause, retry_after or 0.0), LONGEST_PAUSE)
        while may_retry() and (left := until - time.monotonic()) > 0:  # noqa: ASYNC110  no event says both
            await asyncio.sleep(min(left, 0.5))
        return min(2 * pause, LONGEST_PAUSE)

    async def _attempt(self, line: Line, caller: TenantContext) -> LineResult:
        services = self._services
        decoded = decode_line(line.content, self._url)
        body = decode_body(decoded, self._endpoint)
        prepared = await self._endpoint.prepare(services, caller, body)
        validated = self._identified(prepared.request.validated, line)
        pool = services.pools[validated.model.base]
        self._num_attempts += 1
        reserved = await reserve_batch_line(
            validated, f"{self._fence}.{self._num_attempts}", services.quotas, services.prices
        )
        try:
            reserved.trace = trace_background(services.tracing, reserved.submission)
            answer = Answer(
                reserved,
                NoOutcome(caller, services.sla, services.metrics),
                pool.text,
                services.metrics,
                services.deferred_work,
                time.perf_counter(),
                prepared.request.is_chat,
                prepared.request.echo,
            )
            await answer.submit(pool.engine, services.request_metadata)
            try:
                content = await prepared.body(answer, validated)
            except BaseException:
                answer.abort()
                raise
        finally:
            reserved.release()
        used: Usage = answer.usage
        text = answered(self._batch_id, line.number, decoded.custom_id, validated.id, 200, content)
        return LineResult(line.number, text, False, used, reserved.used.spend)

    def _identified(self, validated: ValidatedRequest, line: Line) -> ValidatedRequest:
        """Returns the request with the line's id, time and seed: however often it runs, it is one record of
        the ledger, and draws the same tokens.
        """
        seed = line_seed(self._batch_id, line.number)
        return msgspec.structs.replace(
            validated,
            id=request_id(self._endpoint.id_prefix, self._batch_id, line.number, line.submitted_at),
            submitted_at=line.submitted_at.timestamp(),
            sampling=[
                sampling if sampling.seed is not None else msgspec.structs.replace(sampling, seed=seed)
                for sampling in validated.sampling
            ],
            is_streamed=False,
        )

    def _failed(self, line: Line, error: Exception) -> LineResult:
        custom_id = decode_line(line.content, self._url).custom_id
        request = request_id(self._endpoint.id_prefix, self._batch_id, line.number, line.submitted_at)
        if response_for(error).status >= 500:
            log.error("line failed", batch_id=self._batch_id, line=line.number, error=repr(error)[:500])
        return LineResult(line.number, refused(self._batch_id, line.number, custom_id, request, error), True)


def _is_passing(error: Exception) -> bool:
    if isinstance(error, RequestRejected):
        return error.code in _PASSING_CODES
    return isinstance(error, PASSING)
