"""Computes next-token logits of a model in one of its quantised forms, one sequence at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from benchmarks.floor import KV_BYTES, WEIGHT_BYTES
from benchmarks.random_adapters import STORED
from engine.lora.artifact import PackedAdapter
from engine.lora.pool import AdapterPool
from engine.model.cache import KVCache
from engine.model.model import Model
from kernels.attention import AttentionMetadata
from kernels.lora import LoraContext

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Variant:
    """How base, keys and values, and adapters are stored. Nothing is quantised in `EXACT`."""

    quantization: str
    kv_dtype: str = "auto"
    adapter_dtype: str = "bf16"

    @classmethod
    def parse(cls, text: str) -> Variant:
        """ "fp8", "fp8/fp8" (with FP8 keys and values) or "fp8/auto/fp8" (with FP8 adapters).

        Raises ValueError.
        """
        found = cls(*text.split("/"))
        known = (("quantization", WEIGHT_BYTES), ("kv_dtype", KV_BYTES), ("adapter_dtype", STORED))
        for name, names in known:
            if getattr(found, name) not in names:
                raise ValueError(f"{text}: {name} is one of {', '.join(names)}")
        return found

    def __str__(self) -> str:
        return f"{self.quantization}/{self.kv_dtype}/{self.adapter_dtype}"


EXACT = Variant("none")


class Scorer(Protocol):
    """A model and the adapters in its slots."""

    model: Model

    def logits(self, token_ids: list[int], adapter: str | None, computed: int = 0) -> Tensor:
        """[T - computed, V]: next-token logits of all but the first `computed` tokens, which are cached."""
        ...


class HostScorer:
    """Described on the host, as a CPU runs it."""

    def __init__(
        self, model: Model, adapters: Mapping[str, PackedAdapter], max_len: int, kv_dtype: str = "auto"
    ) -> None:
        if kv_dtype != "auto":
            raise ValueError(f"keys and values in {kv_dtype} need a GPU")
        self.model = model
        self._slots = {name: slot for slot, name in enumerate(adapters)}
        pool = AdapterPool(model.config, max(1, len(adapters)), model.device, model.dtype)
        for name, packed in adapters.items():
            pool.load(self._slots[name], packed)
        self._lora = LoraContext(pool, model.device)
        num_blocks = -(-max_len // BLOCK_SIZE)
        self._kv = KVCache(model.config, num_blocks + 1, BLOCK_SIZE, model.device, model.dtype)
        self._table = np.arange(1, num_blocks + 1, dtype=np.int32)[None]

    def logits(self, token_ids: list[int], adapter: str | None, computed: int = 0) -> Tensor:
        total = len(token_ids)
        attention = AttentionMetadata.build(
            np.array([total - computed]), np.array([total]), self._table, BLOCK_SIZE
        )
        slot = -1 if adapter is None else self._slots[adapter]
        self._lora.begin(np.full(total - computed, slot))
        ids = torch.tensor(token_ids[computed:])
        positions = torch.from_numpy(attention.positions)
        return self.model.logits(self.model.forward(ids, positions, attention, self._kv, self._lora))


def make_scorer(
    model: Model, adapters: Mapping[str, PackedAdapter], max_len: int, kv_dtype: str = "auto"
) -> Scorer:
    """For sequences of up to `max_len` tokens, on the model's device. Raises ValueError."""
    if model.device.type == "cpu":
        return HostScorer(model, adapters, max_len, kv_dtype)
    from benchmarks.device_scorer import DeviceScorer

    return DeviceScorer(model, adapters, max_len, kv_dtype)


def log_probs(scorer: Scorer, token_ids: list[int], adapter: str | None, start: int) -> Tensor:
    """[T - start, V], on the host: log-probabilities of the tokens from `start` on, given all before."""
    return scorer.logits(token_ids, adapter)[start - 1 : -1].log_softmax(-1).cpu()


def answer(scorer: Scorer, prompt_ids: list[int], adapter: str | None, max_tokens: int) -> list[int]:
    """Greedy tokens up to the end of sequence, which is left out."""
    return _continued(scorer, prompt_ids, 0, adapter, max_tokens)


def scored_answer(
    scorer: Scorer, token_ids: list[int], adapter: str | None, start: int, max_tokens: int
) -> tuple[Tensor, list[int]]:
    """Returns `log_probs` of the tokens from `start` on, and the `answer` to those before.

    The pass that scores the tokens also yields the greedy answer up to where it differs from them: only the
    rest is decoded token by token.
    """
    logits = scorer.logits(token_ids, adapter)[start - 1 :]
    end_ids = scorer.model.config.eos_ids
    scored = logits[:-1].log_softmax(-1).cpu()
    found: list[int] = []
    for likeliest, given in zip(logits.argmax(-1).tolist(), [*token_ids[start:], None], strict=True):
        if likeliest in end_ids or len(found) == max_tokens:
            return scored, found
        found.append(likeliest)
        if likeliest != given:
            break
    rest = _continued(
        scorer, token_ids[:start] + found, start + len(found) - 1, adapter, max_tokens - len(found)
    )
    return scored, found + rest


def _continued(
    scorer: Scorer, token_ids: list[int], computed: int, adapter: str | None, max_tokens: int
) -> list[int]:
    """Greedy tokens after `token_ids`, of which the first `computed` are cached."""
    sequence = list(token_ids)
    for _ in range(max_tokens):
        token_id = int(scorer.logits(sequence, adapter, computed)[-1].argmax())
        if token_id in scorer.model.config.eos_ids:
            break
        computed = len(sequence)
        sequence.append(token_id)
    return sequence[len(token_ids) :]


def divergence(exact: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
    """(KL of `moved` from `exact` in nats, whether the likeliest token is the same), per position."""
    kl = (exact.exp() * (exact - moved)).sum(-1)
    return kl, (exact.argmax(-1) == moved.argmax(-1)).float()
