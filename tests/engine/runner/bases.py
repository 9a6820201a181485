"""Small random base models in Hugging Face layout, written without transformers, and adapters packed for
them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from adapters.packing import module_path, pack
from engine.lora.artifact import GROUPS
from engine.model.config import ModelConfig, load_config
from engine.model.weights import base_digest
from engine.protocol import AdapterRef
from tests.adapters.peft_files import LINEARS, lora_tensors, write_peft

VOCAB_SIZE = 211

_SHAPE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "eos_token_id": 2,
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_theta": 10000.0},
    "mistral": {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "sliding_window": None,
        "rope_theta": 10000.0,
    },
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32},
}


def write_base(
    path: Path,
    architecture: str = "llama",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **changes: Any,
) -> ModelConfig:
    """A checkpoint whose greedy answers wander instead of repeating one token."""
    raw = _SHAPE | ARCHITECTURES[architecture] | changes
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(raw))
    config = load_config(path)
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, std: float) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * std).to(dtype)

    tensors = {
        "model.embed_tokens.weight": random(config.vocab_size, config.hidden_size, std=1.0),
        "model.norm.weight": 1 + random(config.hidden_size, std=0.1),
    }
    if not config.tie_embeddings:
        tensors["lm_head.weight"] = random(config.vocab_size, config.hidden_size, std=0.3)
    for layer in range(config.num_layers):
        for name in (name for names in GROUPS.values() for name in names):
            shape = config.linear_shapes[name]
            key = module_path(layer, name)
            tensors[f"{key}.weight"] = random(*shape, std=shape[1] ** -0.5)
            if config.has_bias(name):
                tensors[f"{key}.bias"] = random(shape[0], std=0.3)
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{norm}.weight"] = 1 + random(config.hidden_size, std=0.1)
        if config.qk_norm:
            for norm in ("q_norm", "k_norm"):
                tensors[f"{prefix}.self_attn.{norm}.weight"] = 1 + random(config.head_dim, std=0.1)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return config


@dataclass(frozen=True)
class Adapter:
    peft_dir: Path
    ref: AdapterRef


def write_adapters(base_dir: Path, out: Path, *, std: float = 0.25) -> dict[str, Adapter]:
    """Adapters of mixed ranks and modules, packed in fp32 so that an fp32 oracle must agree."""
    config = load_config(base_dir)
    small = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    wide = {"r": 16, "lora_alpha": 16, "use_rslora": True, "target_modules": list(LINEARS)}
    mlp = {"r": 8, "lora_alpha": 12, "target_modules": ["gate_proj", "down_proj"], "layers_to_transform": [1]}
    mixed = {
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["k_proj", "o_proj", "up_proj"],
        "rank_pattern": {"up_proj": 7, r"layers\.0\..*k_proj": 3},
        "alpha_pattern": {"o_proj": 9},
    }
    adapters = {}
    for seed, (name, fields) in enumerate({"small": small, "wide": wide, "mlp": mlp, "mixed": mixed}.items()):
        modules = fields["target_modules"]
        layers = fields.get("layers_to_transform")
        tensors = lora_tensors(config, modules, fields["r"], layers, seed=seed, std=std)
        if name == "mixed":
            for module, rank, at in (("up_proj", 7, [0, 1]), ("k_proj", 3, [0])):
                tensors |= lora_tensors(config, [module], rank, at, seed=seed + 10, std=std)
        path = write_peft(out / name, tensors, **fields)
        adapters[name] = Adapter(path, pack(path, config, base_digest(base_dir), out / "packed", "float32"))
    return adapters


def write_draft_adapter(
    base_dir: Path, out: Path, seed: int, *, placeholder_id: int = 7, ahead: int = 4, std: float = 0.25
) -> Path:
    """A draft adapter's folder, of random weights: it guesses nonsense."""
    config = load_config(base_dir)
    tensors = lora_tensors(config, list(LINEARS), 6, None, seed=seed, std=std)
    path = write_peft(out, tensors, r=6, lora_alpha=12, target_modules=list(LINEARS))
    description = {"placeholder_token_id": placeholder_id, "num_ahead": ahead}
    (path / "drafter.json").write_text(json.dumps(description))
    return path
