"""Scores the samples on the serving engine: over its normal path, at lower priority than all paid requests.

A few samples at a time run at FLEX priority; while others are served, one now and then. Requests are retried
while the engine is busy or away. Results are in the order of the samples, whatever order they ran in, so that
they do not depend on load.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Protocol

from adapters.calibration.errors import ServingRefused, ServingUnavailable
from adapters.calibration.pacing import SERVING_SHARE, OtherTraffic, Pace
from adapters.calibration.samples import Sample
from adapters.calibration.scores import Scores
from engine.client import EngineGone, Generation, ReaderStalled, RequestRejected
from engine.protocol import (
    AdapterRef,
    EngineInfo,
    EngineStats,
    PriorityClass,
    SamplingParams,
    Submit,
    TokenLogprob,
)
from telemetry.tasks import run_together
from tenants.object_names import CALIBRATION_KEY

AT_ONCE = 8
"""Samples in an otherwise idle engine at a time; in a busy one it is one, with rests between."""
PATIENCE = 300.0
"""Seconds one sample is retried before the calibration gives up for now."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a retry; doubled each time."""
ENDPOINT = "calibration"
"""The endpoint in the ledger, and the key id of requests without a key."""

_BUSY = {"overloaded", "adapter_loading", "draining", "duplicate"}


class ScoringEngine(Protocol):
    """The part of `engine.client.EngineClient` that is used here."""

    @property
    def info(self) -> EngineInfo | None: ...

    @property
    def stats(self) -> EngineStats | None: ...

    def submit(self, request: Submit) -> Generation: ...


@dataclass(frozen=True, slots=True)
class ScoringAccount:
    """The tenant, model and version that scoring is billed and labelled with."""

    tenant: str
    model: str
    """The pinned name of the model being calibrated."""
    adapter_id: str
    version: int

    def labels(self) -> dict[str, str]:
        return {
            "key_id": CALIBRATION_KEY,
            "model": self.model,
            "endpoint": ENDPOINT,
            "service_tier": PriorityClass.FLEX.value,
            "adapter_id": self.adapter_id,
            "adapter_version": str(self.version),
        }


@dataclass(frozen=True, slots=True)
class EngineScorer:
    """Scores samples on the engine."""

    engine: ScoringEngine
    asker: ScoringAccount
    at_once: int = AT_ONCE
    patience: float = PATIENCE
    pace: Pace = field(init=False)
    labels: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pace", Pace(OtherTraffic(lambda: self.engine.stats), SERVING_SHARE))
        object.__setattr__(self, "labels", self.asker.labels())

    async def scores(self, samples: Sequence[Sample], adapter: AdapterRef | None) -> list[Scores]:
        """Returns every sample's scores, in order; without an adapter the base's own.

        Raises:
            ServingUnavailable: the engine was busy or away for too long. Retry later.
            ServingRefused: the engine rejects the request.
        """
        if not samples:
            return []
        room, alone = asyncio.Semaphore(self.at_once), asyncio.Lock()

        async def one(sample: Sample) -> Scores:
            async with room:
                if not self.pace.is_slow:
                    return await self._asked(sample, adapter)
                async with alone:
                    began = time.monotonic()
                    found = await self._asked(sample, adapter)
                    await self.pace.rest(time.monotonic() - began)
                    return found

        # A cancelled reader aborts its request, so that the engine does not compute unread results.
        return await run_together(*(one(sample) for sample in samples))

    async def _asked(self, sample: Sample, adapter: AdapterRef | None) -> Scores:
        """Retries until the request is answered or rejected, or the time is up."""
        deadline = time.monotonic() + self.patience
        pause = FIRST_PAUSE
        while True:
            try:
                return await self._once(sample, adapter)
            except RequestRejected as error:
                if error.code not in _BUSY:
                    raise ServingRefused(error.code, error.message) from error
                reason = f"{error.message} ({error.code})"
            except (EngineGone, ReaderStalled) as error:
                reason = str(error)
            if time.monotonic() + pause > deadline:
                raise ServingUnavailable(f"no answer within {self.patience:g} s: {reason}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _once(self, sample: Sample, adapter: AdapterRef | None) -> Scores:
        generation = self.engine.submit(
            Submit(
                # A new id each time: the request of a lost answer may still be running.
                request_id=f"calib-{token_hex(16)}",
                tenant=self.asker.tenant,
                prompt_ids=sample.token_ids,
                sampling=SamplingParams(
                    max_tokens=0, temperature=0.0, prompt_logprobs=1, score_from=sample.start
                ),
                adapter=adapter,
                priority=PriorityClass.FLEX,
                labels=dict(self.labels),
                submitted_at=time.time(),
            )
        )
        async for _ in generation:
            pass  # generates nothing
        return _read(sample, generation.scores)


def _read(sample: Sample, scores: Sequence[TokenLogprob]) -> Scores:
    """Converts the engine's scores. Raises ServingRefused when they are not for the sample's tokens."""
    expected = sample.token_ids[sample.start :]
    found = [score.token_id for score in scores]
    if found != expected:
        raise ServingRefused("scores", f"{len(found)} scores came back for {len(expected)} tokens")
    return Scores([score.logprob for score in scores], [score.top[0].token_id for score in scores])
