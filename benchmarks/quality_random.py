"""Measures how quantising changes a larger model of random weights, with outliers like trained models have.

Random tokens through a base with one adapter of rank 16 (`random_base.Outliers` defines the weights):
divergence of the next-token distributions from those of the unquantised model, position by position. Nothing
is right or wrong here; it shows how much a variant changes a model of this width and depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from adapters.rounding import to_pair
from benchmarks.random_adapters import BASE_DIGEST, STORED
from benchmarks.random_base import RESIDUAL_GROUPS, random_base, residual_gain
from benchmarks.scorer import EXACT, Scorer, Variant, divergence, log_probs, make_scorer
from benchmarks.shapes import shape
from engine.lora.artifact import PackedAdapter
from engine.model.config import GROUPS, ModelConfig

RANK = 16
LORA_SCALE = 2.0
B_WIDTH = 0.2
"""Standard deviation of B times sqrt(rank): an adapter's delta is about two fifths of the base's output."""
SEQUENCE_LEN = 128
ADAPTER = "random"


def random_rows(
    name: str, variants: Sequence[Variant], num_tokens: int, device: torch.device | str = "cpu"
) -> list[dict[str, Any]]:
    """One line of the table per variant. The models are made one after the other, from the same numbers."""
    config = shape(name)
    generator = torch.Generator().manual_seed(5)
    sequences = torch.randint(
        config.vocab_size, (max(1, num_tokens // SEQUENCE_LEN), SEQUENCE_LEN), generator=generator
    ).tolist()
    scorer = _scorer(config, EXACT, device)
    exact = [log_probs(scorer, sequence, ADAPTER, 1) for sequence in sequences]
    entropy = float(torch.cat([-(one.exp() * one).sum(-1) for one in exact]).mean())
    del scorer
    lines = []
    for variant in variants:
        scorer = _scorer(config, variant, device)
        pairs = [
            divergence(one, log_probs(scorer, sequence, ADAPTER, 1))
            for one, sequence in zip(exact, sequences, strict=True)
        ]
        del scorer
        kl, same = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        lines.append(
            {
                "model": name,
                **asdict(variant),
                "tokens": len(kl),
                "entropy": round(entropy, 3),
                "mean_kl": round(float(kl.mean()), 6),
                "max_kl": round(float(kl.max()), 4),
                "top1": round(float(same.mean()), 5),
            }
        )
        print(lines[-1], flush=True)
    return lines


def _scorer(config: ModelConfig, variant: Variant, device: torch.device | str) -> Scorer:
    model = random_base(config, variant.quantization, device, outliers=True)
    return make_scorer(model, {ADAPTER: _adapter(config, variant)}, SEQUENCE_LEN, variant.kv_dtype)


def _adapter(config: ModelConfig, variant: Variant) -> PackedAdapter:
    """The same numbers for every type, before they are rounded to it."""
    generator = torch.Generator().manual_seed(9)
    dtype = STORED[variant.adapter_dtype]

    def normal(rows: int, columns: int, width: float) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * width

    gain = residual_gain(config)
    narrow = [module for group in RESIDUAL_GROUPS for module in GROUPS[group]]
    layers = [
        {
            module: to_pair(
                normal(RANK, in_features, in_features**-0.5),
                normal(RANK, out_features, B_WIDTH * RANK**-0.5 * (gain if module in narrow else 1.0)),
                LORA_SCALE,
                dtype,
            )
            for module, (out_features, in_features) in config.linear_shapes.items()
        }
        for _ in range(config.num_layers)
    ]
    return PackedAdapter.build(layers, BASE_DIGEST, dtype)
