"""From a PEFT LoRA directory to the packed artifact that engines read, or a reason why not.

Owns the reading of `adapter_config.json` and `adapter_model.safetensors` as PEFT reads them, and strictness
beyond PEFT's: every tensor must belong to a module of the base that the config targets, and every targeted
module must have its two tensors, because a name that matches nothing would silently serve the base. What the
kernels cannot reproduce (DoRA, biases, trained embeddings, a modified base...) is refused, not dropped.
Refuses to know who uploads, and where artifacts are kept beyond a folder.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from adapters.rounding import OutOfRange, to_pair
from engine.lora.artifact import GROUPS, MAX_RANK, Dtype, LoraPair, PackedAdapter, artifact_path
from engine.model.config import ModelConfig
from engine.protocol import AdapterRef

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
KEY_PREFIX = "base_model.model."
MAX_CONFIG_BYTES = 1 << 20
MAX_PATTERNS = 1024
MAX_REPEATS = 6

_ATTENTION = GROUPS["qkv"] + GROUPS["o"]
_LINEARS = tuple(name for names in GROUPS.values() for name in names)
_UNPACKABLE = ("lm_head", "model.embed_tokens")

_READ = {
    "peft_type",
    "task_type",
    "r",
    "lora_alpha",
    "use_rslora",
    "rank_pattern",
    "alpha_pattern",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "bias",
    "init_lora_weights",
}
_HARMLESS = {
    # Provenance, and settings of training or initialisation: the trained weights hold their effect.
    "auto_mapping",
    "base_model_name_or_path",
    "revision",
    "peft_version",
    "inference_mode",
    "lora_dropout",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "velora_config",
    "megatron_core",
    "runtime_config",
    "qalora_group_size",
    "ensure_weight_tying",
}
_REFUSED = {
    "use_dora": "DoRA rescales the merged weight, which is not served",
    "lora_bias": "biases on the LoRA matrices are not served",
    "modules_to_save": "fully trained modules are not served, only LoRA on the linear modules",
    "trainable_token_indices": "trained token embeddings are not served",
    "alora_invocation_tokens": "activated LoRA is not served",
    "fan_in_fan_out": "transposed base layers do not exist in the supported architectures",
    "use_qalora": "QALoRA pools the input, which is not served",
    "layer_replication": "replicated layers change the base",
    "target_parameters": "LoRA on bare parameters is not served",
    "megatron_config": "Megatron's parallel layers are not served",
}
_INITS = (True, False, None, "gaussian", "orthogonal", "eva")
"""Initialisations that leave the base as it is; PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA subtract from it."""


class PackingError(ValueError):
    """The directory cannot be packed. `field` is a config field, a tensor's key or a file's name."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """The fields of `adapter_config.json` that decide what is computed."""

    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: dict[str, int]
    alpha_pattern: dict[str, float]
    target_modules: str | list[str]
    exclude_modules: str | list[str]
    layers_to_transform: list[int] | None
    layers_pattern: list[str]

    def rank_of(self, module: str) -> int:
        return int(_first_match(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """alpha / r, or alpha / sqrt(r) for rank-stabilised LoRA (arXiv 2312.03732)."""
        rank = self.rank_of(module)
        alpha = float(_first_match(self.alpha_pattern, module, self.alpha))
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def targets(self, module: str) -> bool:
        """Whether PEFT would put an adapter on the module of this path."""
        if self.exclude_modules and _names(self.exclude_modules, module):
            return False
        if self.target_modules == "all-linear":
            return module not in _UNPACKABLE
        if not _names(self.target_modules, module):
            return False
        if not self.layers_to_transform:
            return True
        patterns = self.layers_pattern or [r"[^.]*"]
        for pattern in patterns:
            found = re.match(rf"(?:^|.*?\.){pattern}\.(?P<index>\d+)\.", module)
            if found:
                return int(found["index"]) in self.layers_to_transform
        return False


def pack(
    peft_dir: Path, base_config: ModelConfig, base_digest: str, out_dir: Path, dtype: Dtype = "bfloat16"
) -> AdapterRef:
    """Pack a PEFT LoRA directory for a base and write it to its place under `out_dir`.

    `dtype` is what weights are stored in: "bfloat16" rounds wider inputs to the nearest even; "float32" holds
    every input exactly; "float8_e4m3" has half the bytes of bf16, and a scale for every rank row of A and B.
    Raises PackingError naming the field, key or file, and nothing is written.
    """
    config = read_config(peft_dir)
    layers = _read_layers(peft_dir / WEIGHTS_FILE, config, base_config, dtype)
    packed = PackedAdapter.build(layers, base_digest, dtype)
    packed.write(artifact_path(out_dir, packed.digest))
    return AdapterRef(packed.digest, packed.manifest.rank)


def read_config(peft_dir: Path) -> LoraConfig:
    """Read and check `adapter_config.json`. Raises PackingError."""
    path = peft_dir / CONFIG_FILE
    if not path.is_file():
        raise PackingError(CONFIG_FILE, "the file is missing")
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise PackingError(CONFIG_FILE, f"larger than {MAX_CONFIG_BYTES} bytes")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise PackingError(CONFIG_FILE, f"not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise PackingError(CONFIG_FILE, "must be a JSON object")
    _refuse_unserved(raw)
    layers = raw.get("layers_to_transform")
    layers = [layers] if isinstance(layers, int) and not isinstance(layers, bool) else layers
    if layers is not None and not (isinstance(layers, list) and all(type(index) is int for index in layers)):
        raise PackingError("layers_to_transform", "must be a layer index or a list of them")
    targets = _module_names(raw, "target_modules")
    if not targets:
        raise PackingError("target_modules", "must name at least one module")
    if isinstance(targets, str) and layers is not None:
        raise PackingError("layers_to_transform", "cannot go with target_modules as a pattern")
    patterns = _module_names(raw, "layers_pattern", compiled=True)
    return LoraConfig(
        rank=_rank("r", raw.get("r", 8)),
        alpha=_alpha("lora_alpha", raw.get("lora_alpha", 8)),
        use_rslora=_flag(raw, "use_rslora"),
        rank_pattern={key: _rank("rank_pattern", v) for key, v in _patterns(raw, "rank_pattern").items()},
        alpha_pattern={key: _alpha("alpha_pattern", v) for key, v in _patterns(raw, "alpha_pattern").items()},
        target_modules=targets,
        exclude_modules=_module_names(raw, "exclude_modules"),
        layers_to_transform=layers,
        layers_pattern=[patterns] if isinstance(patterns, str) and patterns else list(patterns),
    )


def _refuse_unserved(raw: Mapping[str, Any]) -> None:
    if str(raw.get("peft_type")).upper() != "LORA":
        raise PackingError("peft_type", f"{raw.get('peft_type')!r} is not LORA")
    if raw.get("task_type") not in (None, "CAUSAL_LM"):
        raise PackingError("task_type", f"{raw['task_type']!r} is not CAUSAL_LM")
    if raw.get("bias", "none") != "none":
        raise PackingError("bias", f"{raw['bias']!r}: trained biases are not served")
    init = raw.get("init_lora_weights", True)
    if not (init is None or isinstance(init, bool) or init in _INITS):
        raise PackingError(
            "init_lora_weights",
            f"{init!r} trains against a modified base; save the adapter converted to plain LoRA",
        )
    for field, value in raw.items():
        if field in _READ or field in _HARMLESS:
            continue
        # What PEFT adds over time is off by default and changes the output when on.
        if value not in (None, False, 0, "") and value != [] and value != {}:
            raise PackingError(
                field, _REFUSED.get(field, "this setting is unknown and may change the output")
            )


def _flag(raw: Mapping[str, Any], field: str) -> bool:
    value = raw.get(field, False)
    if not isinstance(value, bool):
        raise PackingError(field, f"{value!r} is not true or false")
    return value


def _rank(field: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_RANK:
        raise PackingError(field, f"rank {value!r} is not an integer between 1 and {MAX_RANK}")
    return value


def _alpha(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e30:
        raise PackingError(field, f"alpha {value!r} is not a finite number")
    return float(value)


def _patterns(raw: Mapping[str, Any], field: str) -> dict[str, Any]:
    value = raw.get(field) or {}
    if not isinstance(value, dict):
        raise PackingError(field, "must map patterns to numbers")
    if len(value) > MAX_PATTERNS:
        raise PackingError(field, f"more than {MAX_PATTERNS} patterns")
    for pattern in value:
        _check_pattern(field, pattern)
    return value


def _module_names(raw: Mapping[str, Any], field: str, *, compiled: bool = False) -> str | list[str]:
    """A pattern, or a list of names (`compiled`: of patterns); empty when not given."""
    value = raw.get(field)
    if value is None:
        return []
    if isinstance(value, str):
        _check_pattern(field, value)
        return value
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise PackingError(field, "must be a pattern or a list of names")
    if len(value) > MAX_PATTERNS:
        raise PackingError(field, f"more than {MAX_PATTERNS} names")
    if compiled:
        for pattern in value:
            _check_pattern(field, pattern)
    return value


def _check_pattern(field: str, pattern: str) -> None:
    """Refuse patterns that are no regular expression, and those that could keep the matcher busy for ever."""
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise PackingError(field, f"{pattern!r} is not a regular expression: {error}") from error
    if re.search(r"\)[*+{]", pattern) or len(re.findall(r"[*+{]", pattern)) > MAX_REPEATS:
        reason = f"{pattern[:80]!r} is too complex: no repeated groups, at most {MAX_REPEATS} repetitions"
        raise PackingError(field, reason)


def _names(targets: str | list[str], module: str) -> bool:
    if isinstance(targets, str):
        return re.fullmatch(targets, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in targets)


def _first_match(patterns: Mapping[str, float], module: str, default: float) -> float:
    """PEFT's rule: the first pattern that matches a whole tail of the path, from a dot on."""
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def module_path(layer: int, name: str) -> str:
    """Where a linear module stands in the base, such as `model.layers.3.self_attn.q_proj`."""
    return f"model.layers.{layer}.{'self_attn' if name in _ATTENTION else 'mlp'}.{name}"


def _read_layers(
    path: Path, config: LoraConfig, base: ModelConfig, dtype: Dtype
) -> list[dict[str, LoraPair]]:
    """Per layer, the pairs of the targeted modules; every key of the file used exactly once."""
    if not path.is_file():
        raise PackingError(WEIGHTS_FILE, "the file is missing (only safetensors are read)")
    targets = _targets(config, base)
    layers: list[dict[str, LoraPair]] = [{} for _ in range(base.num_layers)]
    try:
        with safe_open(path, framework="pt") as file:
            _check_keys(set(file.keys()), targets, base)
            for (layer, name), module in targets.items():
                out_features, in_features = base.linear_shapes[name]
                rank = config.rank_of(module)
                key = f"{KEY_PREFIX}{module}"
                a = _read_matrix(file, f"{key}.lora_A.weight", (rank, in_features), 0)
                b = _read_matrix(file, f"{key}.lora_B.weight", (out_features, rank), 1)
                try:
                    layers[layer][name] = to_pair(a, b.t(), config.scale_of(module), dtype)
                except OutOfRange as error:
                    raise PackingError(f"{key}.lora_{error.side}.weight", error.reason) from error
    except SafetensorError as error:
        raise PackingError(WEIGHTS_FILE, f"not a valid safetensors file: {error}") from error
    return layers


def _targets(config: LoraConfig, base: ModelConfig) -> dict[tuple[int, str], str]:
    """(layer, module name) -> path of every linear module that the config puts an adapter on."""
    for module in _UNPACKABLE:
        if config.targets(module):
            raise PackingError("target_modules", f"{module} is not served, only {', '.join(_LINEARS)}")
    for index in config.layers_to_transform or []:
        if not 0 <= index < base.num_layers:
            raise PackingError("layers_to_transform", f"{index}: the base has {base.num_layers} layers")
    paths = {(i, name): module_path(i, name) for i in range(base.num_layers) for name in _LINEARS}
    if isinstance(config.target_modules, list):
        for target in config.target_modules:
            if not any(_names([target], path) for path in paths.values()):
                raise PackingError("target_modules", f"the base has no linear module {target!r}")
    targets = {place: path for place, path in paths.items() if config.targets(path)}
    if not targets:
        raise PackingError("target_modules", "matches no linear module of the base")
    return targets


def _check_keys(keys: set[str], targets: Mapping[tuple[int, str], str], base: ModelConfig) -> None:
    expected = {f"{KEY_PREFIX}{path}.lora_{side}.weight" for path in targets.values() for side in "AB"}
    for key in sorted(keys - expected):
        raise PackingError(key, _why_unexpected(key, base))
    for key in sorted(expected - keys):
        raise PackingError(key, "the config targets this module, but the tensor is missing")


def _why_unexpected(key: str, base: ModelConfig) -> str:
    if not key.startswith(KEY_PREFIX):
        return f"keys must begin with {KEY_PREFIX!r}"
    if "lora_magnitude_vector" in key:
        return _REFUSED["use_dora"]
    if key.endswith(".bias"):
        return "biases are not served"
    if "embed_tokens" in key or "lm_head" in key:
        return "embeddings and the output layer are not served, only LoRA on the linear modules"
    layer = re.search(r"\.layers\.(\d+)\.", key)
    if layer and int(layer[1]) >= base.num_layers:
        return f"the base has {base.num_layers} layers"
    return "belongs to no linear module of the base that the config targets"


def _read_matrix(file: Any, key: str, shape: tuple[int, int], rank_axis: int) -> torch.Tensor:
    view = file.get_slice(key)
    found = tuple(view.get_shape())
    if found != shape:
        if len(found) == 2 and found[1 - rank_axis] == shape[1 - rank_axis]:
            raise PackingError(key, f"rank {found[rank_axis]}, the config says {shape[rank_axis]}")
        raise PackingError(key, f"shape {list(found)}, the base needs {list(shape)}")
    if view.get_dtype() not in ("F32", "F16", "BF16"):
        raise PackingError(key, f"type {view.get_dtype()} is not F32, F16 or BF16")
    tensor = file.get_tensor(key)
    if not torch.isfinite(tensor).all():
        raise PackingError(key, "has values that are not finite")
    return tensor
