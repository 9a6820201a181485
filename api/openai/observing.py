"""How a generation request was served, as its tenant sees it: told once, when it is over.

Owns what counts: an answer, or a failure that is the service's. What the caller did wrong, or was refused for
its limits, counts as nothing; nor does a caller that left before its first token. Refuses to know promises.
"""

from __future__ import annotations

from api.errors import face_of
from engine.protocol import PriorityClass
from sla.recorder import SlaRecorder
from telemetry.metrics import ServingMetrics
from tenants.context import TenantContext

FEWEST_RATED = 16
"""Tokens of a choice from which on its output rate says something."""


class Observation:
    """Of one request. `tier` is the class it asks for, then the one that serves it. As a context it tells of
    what is raised within the block; of an answer that goes on after it, its sender tells.
    """

    __slots__ = ("_caller", "_metrics", "_recorder", "_told", "tier")

    def __init__(self, caller: TenantContext, recorder: SlaRecorder, metrics: ServingMetrics) -> None:
        self.tier = PriorityClass.DEFAULT
        self._caller = caller
        self._recorder = recorder
        self._metrics = metrics
        self._told = False

    def __enter__(self) -> Observation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self.failed(error)

    def answered(self, first_token_seconds: float | None, tokens_per_second: float | None = None) -> None:
        """As far as the client wanted to read. None: there was nothing to measure."""
        if self._told:
            return
        self._told = True
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
        """It ended with `error`, which counts where it is the service's fault."""
        if self._told:
            return
        self._told = True
        if face_of(error).status >= 500:
            self._recorder.failed(self._caller.tenant_id, self.tier)
            self._metrics.unserved(self.tier)
