"""Random tiny checkpoints of every architecture, and a decode loop over the paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.model.cache import KVCache
from engine.model.model import Model
from kernels.attention import AttentionMetadata
from kernels.lora import LoraContext

BLOCK = 16
VOCAB = 160

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "attn_implementation": "eager",
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}

VARIANTS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama, llama3 rope, tied": (
        LlamaConfig,
        LlamaForCausalLM,
        {"rope_parameters": LLAMA3, "tie_word_embeddings": True},
    ),
    "llama, linear rope, biases": (
        LlamaConfig,
        LlamaForCausalLM,
        {"rope_parameters": LINEAR, "attention_bias": True, "mlp_bias": True},
    ),
    "llama, multi-head": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 4}),
    "mistral, multi-query": (
        MistralConfig,
        MistralForCausalLM,
        {"num_key_value_heads": 1, "sliding_window": None},
    ),
    "qwen2, tied": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen2, yarn": (Qwen2Config, Qwen2ForCausalLM, {"rope_parameters": YARN}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 24}),
    "qwen3, biases, yarn": (
        Qwen3Config,
        Qwen3ForCausalLM,
        {"attention_bias": True, "rope_parameters": YARN | {"truncate": False, "mscale": 1.2}},
    ),
}


def make_reference(variant: str, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random transformers model in fp32 with eager attention; norms and biases are random too."""
    config_class, model_class, changes = VARIANTS[variant]
    fields = SHAPE | changes | overrides
    if config_class is Qwen2Config:
        fields.pop("head_dim")
    torch.manual_seed(seed)
    model = model_class(config_class(**fields)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
    return model


def save(model: PreTrainedModel, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


@torch.no_grad()
def reference_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """[T, V] of one sequence."""
    return model(torch.tensor([list(ids)]), use_cache=False).logits[0]


def reference_greedy(model: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """By full recomputation: no cache of theirs to trust."""
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append(int(reference_logits(model, ids)[-1].argmax()))
    return ids[len(prompt) :]


class PagedRun:
    """Sequences over one paged cache, stepped by hand: any mix of chunks and decodes in one batch."""

    def __init__(self, model: Model, num_seqs: int, max_len: int = 128, seed: int = 0) -> None:
        per_seq = -(-max_len // BLOCK)
        self.model = model
        self.kv = KVCache(model.config, num_seqs * per_seq + 1, BLOCK)
        # What former owners may have left behind.
        self.kv.layers[:, 1:] = float("nan")
        blocks = np.random.default_rng(seed).permutation(num_seqs * per_seq) + 1
        self.tables = blocks.reshape(num_seqs, per_seq).astype(np.int32)
        self.computed = [0] * num_seqs

    def step(
        self,
        shares: Sequence[tuple[int, Sequence[int]]],
        lora: LoraContext | None = None,
        slots: Sequence[int] | None = None,
    ) -> list[torch.Tensor]:
        """`shares`: (sequence, its next tokens). Returns the logits [tokens, V] of each share."""
        seqs = [seq for seq, _ in shares]
        lens = [len(ids) for _, ids in shares]
        for seq, ids in shares:
            self.computed[seq] += len(ids)
        totals = [self.computed[seq] for seq in seqs]
        metadata = AttentionMetadata.build(lens, totals, self.tables[seqs], BLOCK)
        if lora is not None:
            assert slots is not None
            lora.begin(np.repeat([slots[seq] for seq in seqs], lens))
        ids = torch.tensor([token for _, tokens in shares for token in tokens])
        hidden = self.model.forward(ids, torch.from_numpy(metadata.positions), metadata, self.kv, lora)
        return list(self.model.logits(hidden).split(lens))

    def greedy(
        self,
        prompts: Sequence[Sequence[int]],
        num_tokens: int,
        lora: LoraContext | None = None,
        slots: Sequence[int] | None = None,
        chunk: int = 1000,
    ) -> tuple[list[list[int]], list[torch.Tensor]]:
        """Continuous batching in miniature: prompts enter in chunks while earlier ones decode already.

        Returns the tokens of each prompt, and the logits they were drawn from, [num_tokens, V] each.
        """
        outputs: list[list[int]] = [[] for _ in prompts]
        drawn: list[list[torch.Tensor]] = [[] for _ in prompts]
        while any(len(output) < num_tokens for output in outputs):
            shares: list[tuple[int, Sequence[int]]] = []
            for seq, prompt in enumerate(prompts):
                done = self.computed[seq]
                if done < len(prompt):
                    shares.append((seq, prompt[done : done + chunk]))
                elif len(outputs[seq]) < num_tokens:
                    shares.append((seq, [outputs[seq][-1]]))
            shares.sort(key=lambda share: len(share[1]) > 1)
            for (seq, _), logits in zip(shares, self.step(shares, lora, slots), strict=True):
                if self.computed[seq] >= len(prompts[seq]):
                    outputs[seq].append(int(logits[-1].argmax()))
                    drawn[seq].append(logits[-1].clone())
        return outputs, [torch.stack(rows) for rows in drawn]


def prompts(lens: Sequence[int], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, length).tolist() for length in lens]
