"""An engine in this process that scores prompts with the real model code, and one that fails on cue."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.scorer import HostScorer
from engine.client import EngineError
from engine.lora.artifact import PackedAdapter, artifact_path
from engine.model.loading import load_model
from engine.model.weights import base_digest
from engine.protocol import EngineInfo, EngineStats, Submit, TokenLogprob, TopLogprob

CONTEXT = 512

base_digest_of = functools.cache(base_digest)
model_of = functools.cache(load_model)
"""By folder and quantisation: models do not change."""
_known: dict[tuple[object, ...], list[TokenLogprob]] = {}
"""What prompts scored: a calibration is tested with many runs over the same adapters and samples, and nothing
but these decides.
"""


class FinishedGeneration:
    """What a client reads of a request that is only scored."""

    def __init__(self, scores: list[TokenLogprob], error: EngineError | None, delay: float = 0.0) -> None:
        self.scores: list[TokenLogprob] = []
        self._found, self._error, self._delay = scores, error, delay

    def __aiter__(self) -> FinishedGeneration:
        return self

    async def __anext__(self) -> Any:
        await asyncio.sleep(self._delay)
        if self._error is not None:
            raise self._error
        self.scores = self._found
        raise StopAsyncIteration


class TorchEngine:
    """Any quantisation that the model's reference in torch can do, int4 on a CPU included.

    Args:
        faults: what the first requests come to instead; None: an answer.
    """

    def __init__(
        self,
        base_dir: Path,
        artifacts_dir: Path,
        quantization: str = "int8",
        faults: Iterable[EngineError | None] = (),
    ) -> None:
        self._model = model_of(base_dir, quantization)
        self._form = (base_digest_of(base_dir), quantization)
        self._artifacts_dir = artifacts_dir
        self._packed: dict[str, PackedAdapter] = {}
        self._scorer = HostScorer(self._model, {}, CONTEXT)
        self._faults = iter(faults)
        self.submits: list[Submit] = []
        self.watch: Callable[[Submit], None] = lambda submit: None
        self.heartbeat: Callable[[], EngineStats | None] = lambda: None
        self.info = EngineInfo(
            engine_id="engine-0",
            incarnation="one",
            base="sapling",
            base_digest=base_digest_of(base_dir),
            quantization=quantization,
            device="cpu",
            context_length=CONTEXT,
            max_prompt_tokens=CONTEXT - 1,
            vocab_size=self._model.config.vocab_size,
            build="test",
        )

    @property
    def stats(self) -> EngineStats | None:
        return self.heartbeat()

    def submit(self, request: Submit) -> FinishedGeneration:
        self.submits.append(request)
        self.watch(request)
        fault = next(self._faults, None)
        if fault is not None:
            return FinishedGeneration([], fault)
        sampling = request.sampling
        assert (sampling.max_tokens, sampling.prompt_logprobs) == (0, 1)
        name = None if request.adapter is None else request.adapter.digest
        key = (*self._form, name, sampling.score_from, *request.prompt_ids)
        if key not in _known:
            _known[key] = self._score(request.prompt_ids, name, sampling.score_from)
        return FinishedGeneration(list(_known[key]), None)

    def _score(self, prompt_ids: list[int], name: str | None, start: int) -> list[TokenLogprob]:
        if name is not None and name not in self._packed:
            self._packed[name] = PackedAdapter.read(artifact_path(self._artifacts_dir, name), name)
            self._scorer = HostScorer(self._model, self._packed, CONTEXT)
        rows = self._scorer.logits(prompt_ids, name)[start - 1 : -1].log_softmax(-1)
        best, likeliest = rows.max(-1)
        targets = torch.tensor(prompt_ids[start:])
        chosen = rows.gather(1, targets[:, None])[:, 0]
        return [
            TokenLogprob(int(token), float(value), [TopLogprob(int(top), float(top_value))])
            for token, value, top, top_value in zip(targets, chosen, likeliest, best, strict=True)
        ]
