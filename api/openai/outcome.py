"""Decides and records whether a generation request was served, for service-level reports and metrics.

Answers and server errors count. Client errors, rate limits and clients that disconnect before the first token
do not.
"""

from __future__ import annotations

from api.errors import response_for
from engine.protocol import PriorityClass
from sla.recorder import SlaRecorder
from telemetry.metrics import ServingMetrics
from tenants.context import TenantContext

FEWEST_RATED = 16
"""Fewest tokens of a choice for which an output rate is recorded."""


class OutcomeRecorder:
    """Records the outcome of one request. `tier`: the requested service tier, later the one that serves it.
    As a context manager it records errors raised within the block; the sender records an answer that outlives
    it.
    """

    __slots__ = ("_caller", "_is_recorded", "_metrics", "_recorder", "tier")

    def __init__(self, caller: TenantContext, recorder: SlaRecorder, metrics: ServingMetrics) -> None:
        self.tier = PriorityClass.DEFAULT
        self._caller = caller
        self._recorder = recorder
        self._metrics = metrics
        self._is_recorded = False

    def __enter__(self) -> OutcomeRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self.failed(error)

    def answered(self, first_token_seconds: float | None, tokens_per_second: float | None = None) -> None:
        """Records an answer, up to where the client read it. None: nothing was measured."""
        if self._is_recorded:
            return
        self._is_recorded = True
        terms = self._caller.plan.terms[self.tier]
        self._recorder.answered(
            self._caller.tenant_id, self.tier, terms, first_token_seconds, tokens_per_second
        )
        self._metrics.served(
            self.tier,
            None if first_token_seconds is None else first_token_seconds <= terms.ttft_target_ms / 1000,
            None if tokens_per_second is None else tokens_per_second >= terms.min_output_tokens_per_second,
        )

    def failed(self, error: BaseException) -> None:
        """Records a failure, which counts if it is a server error."""
        if self._is_recorded:
            return
        self._is_recorded = True
        if response_for(error).status >= 500:
            self._recorder.failed(self._caller.tenant_id, self.tier)
            self._metrics.unserved(self.tier)
