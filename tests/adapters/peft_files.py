"""PEFT LoRA directories made by hand, without the ten seconds that importing PEFT takes."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from adapters.packing import module_path
from engine.model.config import ModelConfig, parse_config

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def tiny_config(**changes: Any) -> ModelConfig:
    """A Llama of 2 layers with grouped heads; every size differs, so that no wrong shape fits by luck."""
    raw = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "intermediate_size": 56,
        "vocab_size": 97,
        "max_position_embeddings": 256,
        "eos_token_id": 2,
    }
    return parse_config(raw | changes)


def lora_tensors(
    base: ModelConfig,
    modules: Iterable[str] = ("q_proj", "v_proj"),
    rank: int = 4,
    layers: Iterable[int] | None = None,
    *,
    seed: int = 0,
    std: float = 0.5,
    dtype: torch.dtype = torch.float32,
) -> dict[str, torch.Tensor]:
    """Random A and B under PEFT's keys."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(base.num_layers) if layers is None else layers:
        for name in modules:
            out_features, in_features = base.linear_shapes[name]
            key = f"base_model.model.{module_path(layer, name)}"
            a = torch.randn(rank, in_features, generator=generator) * std
            b = torch.randn(out_features, rank, generator=generator) * std
            tensors[f"{key}.lora_A.weight"] = a.to(dtype)
            tensors[f"{key}.lora_B.weight"] = b.to(dtype)
    return tensors


def write_peft(path: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    """An adapter directory; `config` over a plain rank 4 q and v adapter, `...` removes a field."""
    fields: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "v_proj"],
    }
    fields |= config
    path.mkdir(parents=True, exist_ok=True)
    kept = {key: value for key, value in fields.items() if value is not ...}
    (path / "adapter_config.json").write_text(json.dumps(kept))
    save_file(tensors, path / "adapter_model.safetensors")
    return path
