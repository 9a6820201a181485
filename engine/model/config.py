"""Reads a base model's configuration from a Hugging Face folder: its shape and its variations.

Translates `config.json` (transformers 4 and 5 spellings) into one frozen dataclass, and rejects every field
that would change the output and that the decoder does not implement. Does not import torch, so that adapters
can be packed and checked without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model.checkpoint_quantization import CheckpointQuantization, parse_quantization

GROUPS: dict[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""Linear modules that read the same input, in storage order: one fused base weight, one LoRA shrink each."""

ARCHITECTURES = {"llama": "llama", "mistral": "mistral", "qwen2": "qwen2", "qwen3": "qwen3"}
"""`model_type` of a checkpoint -> our name."""

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are scaled; field names are those of the checkpoint's `rope_parameters`."""

    rope_type: str
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and variations of one decoder."""

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rope_theta: float
    rope_scaling: RopeScaling
    rms_eps: float
    max_position: int
    """Tokens of context; clamped to `sliding_window` where some layer attends within one."""
    eos_ids: tuple[int, ...]
    """Tokens that end a sequence: those of generation_config.json, else of config.json."""
    qk_norm: bool = False
    """RMSNorm over each head of q and k before RoPE (Qwen3)."""
    attention_bias: bool = False
    """Biases on q, k and v."""
    output_bias: bool = False
    """Bias on o."""
    mlp_bias: bool = False
    """Biases on gate, up and down."""
    tie_embeddings: bool = False
    sliding_window: int | None = None
    """The window some layer attends within. Within `max_position` it has no effect, so it needs no code."""
    is_clamped: bool = False
    """Whether `max_position` is the window, and less than the base was trained for."""
    quantization: CheckpointQuantization | None = None
    """How the checkpoint stores its linear layers; None: as floats."""

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Module name -> (out_features, in_features) of the seven modules that may carry adapters."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return {
            "q_proj": (self.q_size, hidden),
            "k_proj": (self.kv_size, hidden),
            "v_proj": (self.kv_size, hidden),
            "o_proj": (hidden, self.q_size),
            "gate_proj": (inner, hidden),
            "up_proj": (inner, hidden),
            "down_proj": (hidden, inner),
        }

    @property
    def group_widths(self) -> dict[str, tuple[int, ...]]:
        """Group -> out_features of its modules, in storage order."""
        shapes = self.linear_shapes
        return {group: tuple(shapes[module][0] for module in modules) for group, modules in GROUPS.items()}

    def has_bias(self, module: str) -> bool:
        """Returns whether the base's linear `module` ("q_proj" ... "down_proj") adds a bias."""
        if module in GROUPS["qkv"]:
            return self.attention_bias
        return self.output_bias if module == "o_proj" else self.mlp_bias


def load_config(base_dir: Path) -> ModelConfig:
    """Reads `config.json` and, where there is one, `generation_config.json`.

    Raises:
        ValueError: a file is missing or not JSON, or a field is missing or not supported.
    """
    generation_path = base_dir / "generation_config.json"
    generation = _read_object(generation_path) if generation_path.exists() else {}
    return parse_config(_read_object(base_dir / "config.json"), generation)


def parse_config(raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
    """Does the same as `load_config`, from the parsed JSON objects."""
    architecture = ARCHITECTURES.get(raw.get("model_type", ""))
    if architecture is None:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(
            f"config.json: model_type {raw.get('model_type')!r} is not supported (one of {known})"
        )
    _refuse_unsupported(raw)
    num_heads = _positive_int(raw, "num_attention_heads")
    hidden_size = _positive_int(raw, "hidden_size")
    num_kv_heads = _num_kv_heads(raw, architecture, num_heads)
    num_layers = _positive_int(raw, "num_hidden_layers")
    window = _sliding_window(raw, architecture, num_layers)
    max_position = _positive_int(raw, "max_position_embeddings")
    bias = bool(raw.get("attention_bias", False))
    return ModelConfig(
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(raw, architecture, hidden_size, num_heads),
        intermediate_size=_positive_int(raw, "intermediate_size"),
        vocab_size=_positive_int(raw, "vocab_size"),
        rope_theta=_rope_theta(raw),
        rope_scaling=_rope_scaling(raw, max_position),
        rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
        max_position=max_position if window is None else min(max_position, window),
        is_clamped=window is not None and window < max_position,
        eos_ids=_eos_ids(raw, generation or {}),
        qk_norm=architecture == "qwen3",
        attention_bias=architecture == "qwen2" or (architecture in ("llama", "qwen3") and bias),
        output_bias=architecture in ("llama", "qwen3") and bias,
        mlp_bias=architecture == "llama" and bool(raw.get("mlp_bias", False)),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        sliding_window=window,
        quantization=parse_quantization(raw),
    )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path.name} is missing from {path.parent}") from None
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds {type(value).__name__}, not an object")
    return value


def _positive_int(raw: Mapping[str, Any], name: str) -> int:
    value = raw.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"config.json: {name} must be a positive integer, not {value!r}")
    return value


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    """Raises ValueError for fields that change what the model computes: ignoring them would be silently
    wrong.
    """
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ValueError(f"config.json: hidden_act {activation!r} is not supported, only 'silu'")
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        if raw.get(name):
            raise ValueError(f"config.json: {name} = {raw[name]}: mixtures of experts are not supported")
    if raw.get("pretraining_tp", 1) not in (None, 1):
        raise ValueError(f"config.json: pretraining_tp = {raw['pretraining_tp']} is not supported, only 1")
    partial = {raw.get("partial_rotary_factor"), _rope_fields(raw).get("partial_rotary_factor")} - {None, 1}
    if partial:
        raise ValueError(f"config.json: partial_rotary_factor = {partial.pop()} is not supported, only 1")


def _num_kv_heads(raw: Mapping[str, Any], architecture: str, num_heads: int) -> int:
    if raw.get("num_key_value_heads") is None and (architecture == "llama" or "num_key_value_heads" in raw):
        num_kv_heads = num_heads
    else:
        num_kv_heads = _positive_int(raw, "num_key_value_heads")
    if num_heads % num_kv_heads:
        raise ValueError(
            f"config.json: num_attention_heads {num_heads} is no multiple of "
            f"num_key_value_heads {num_kv_heads}"
        )
    return num_kv_heads


def _head_dim(raw: Mapping[str, Any], architecture: str, hidden_size: int, num_heads: int) -> int:
    if raw.get("head_dim") is not None:
        head_dim = _positive_int(raw, "head_dim")
    elif architecture == "qwen3":
        head_dim = 128  # the architecture's own default, independent of the hidden size
    elif hidden_size % num_heads:
        raise ValueError(
            f"config.json: hidden_size {hidden_size} is no multiple of num_attention_heads {num_heads}"
        )
    else:
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise ValueError(f"config.json: head_dim {head_dim} is odd; rotary embeddings need pairs")
    return head_dim


def _sliding_window(raw: Mapping[str, Any], architecture: str, num_layers: int) -> int | None:
    """Returns the window, where some layer attends within one. As in transformers, the layers of Qwen that do
    are named by `layer_types` or begin at `max_window_layers`.
    """
    if architecture == "mistral":
        window = raw.get("sliding_window", 4096)  # the default where config.json has no value
    elif architecture in ("qwen2", "qwen3"):
        layer_types = raw.get("layer_types")
        if layer_types is None:
            first = raw.get("max_window_layers", 28)
            if not isinstance(first, int):
                raise ValueError(f"config.json: max_window_layers must be an integer, not {first!r}")
            slides = first < num_layers
        else:
            slides = "sliding_attention" in layer_types[:num_layers]
        window = raw.get("sliding_window", 4096) if raw.get("use_sliding_window") and slides else None
    else:
        window = None
    return None if window is None else _positive_int({"sliding_window": window}, "sliding_window")


def _rope_fields(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns `rope_parameters` as of transformers 5, or `rope_scaling` (beside `rope_theta`) as of 4."""
    for name in ("rope_parameters", "rope_scaling"):
        fields = raw.get(name)
        if fields is None:
            continue
        if not isinstance(fields, Mapping) or any(isinstance(value, Mapping) for value in fields.values()):
            raise ValueError(f"config.json: {name} must be one flat object, not per-layer or {fields!r}")
        return fields
    return {}


def _rope_theta(raw: Mapping[str, Any]) -> float:
    theta = _rope_fields(raw).get("rope_theta", raw.get("rope_theta", 10000.0))
    if not isinstance(theta, int | float) or theta <= 0:
        raise ValueError(f"config.json: rope_theta must be positive, not {theta!r}")
    return float(theta)


def _rope_scaling(raw: Mapping[str, Any], max_position: int) -> RopeScaling:
    fields = _rope_fields(raw)
    rope_type = fields.get("rope_type", fields.get("type", "default"))
    if rope_type not in ROPE_TYPES:
        known = ", ".join(ROPE_TYPES)
        raise ValueError(f"config.json: rope_type {rope_type!r} is not supported (one of {known})")
    if rope_type == "default":
        return RopeScaling(rope_type)
    original = raw.get("original_max_position_embeddings") or fields.get("original_max_position_embeddings")
    factor = fields.get("factor")
    if factor is None and rope_type == "yarn" and original:
        factor = max_position / original
    numbers: dict[str, Any] = {"factor": factor}
    required = ("low_freq_factor", "high_freq_factor") if rope_type == "llama3" else ()
    for name in (*required, "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor"):
        if name in required or fields.get(name) is not None:
            numbers[name] = fields.get(name)
    for name, value in numbers.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            raise ValueError(
                f"config.json: {name} of rope_type {rope_type!r} must be a number, not {value!r}"
            )
    return RopeScaling(
        rope_type=rope_type,
        original_max_position=int(original or max_position),
        truncate=bool(fields.get("truncate", True)),
        **{name: float(value) for name, value in numbers.items() if value or name == "factor"},
    )


def _eos_ids(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[int, ...]:
    for source in (generation, raw):
        eos = source.get("eos_token_id")
        if eos is None:
            continue
        eos_ids = eos if isinstance(eos, list) else [eos]
        if not all(
            isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in eos_ids
        ):
            raise ValueError(f"eos_token_id must be token ids, not {eos!r}")
        return tuple(eos_ids)
    return ()
