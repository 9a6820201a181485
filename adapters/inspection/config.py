"""Parses `adapter_config.json` as PEFT does, and rejects fields that cannot be served.

Fields are allowed explicitly: an unknown field that is set may change the output, so it is rejected.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from adapters.inspection.errors import CONFIG_FILE, InspectionRefused
from adapters.inspection.header import read_exactly
from adapters.inspection.patterns import Pattern, Steps
from adapters.inspection.strict_json import decode_object
from engine.lora.manifest import MAX_RANK

MAX_CONFIG_BYTES = 1 << 20
MAX_PATTERNS = 1024
MAX_ALPHA = 1e6
"""Usual values are between 1 and 1024; a much larger one is a mistake or an attack."""

UNPACKABLE = ("lm_head", "model.embed_tokens")
"""Modules that PEFT can adapt and the kernels cannot."""
ALL_LINEAR: Final = "all-linear"
"""PEFT's name for every linear module but the output layer."""

_TAIL = r"(?:.*\.)?(?:{})"
"""PEFT's rule for ranks and alphas: the pattern matches a tail of the path that starts after a dot."""
_LAYER_INDEX = r"(?:^|.*?\.){}\.(?P<index>\d+)\."
_ANY_LIST = r"[^.]*"

Number = TypeVar("Number", int, float)

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
    # Provenance, and settings of training or initialisation: their effect is in the trained weights.
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
REFUSED = {
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
"""Initialisations that do not change the base; PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA subtract from it."""


@dataclass(frozen=True)
class LoraConfig:
    """The fields of `adapter_config.json` that affect what is computed."""

    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: list[tuple[Pattern, int]]
    """The first match counts."""
    alpha_pattern: list[tuple[Pattern, float]]
    target_modules: Pattern | frozenset[str] | Literal["all-linear"]
    exclude_modules: Pattern | frozenset[str]
    layers_to_transform: frozenset[int]
    """Empty: all layers."""
    layers_pattern: list[Pattern]

    def rank_of(self, module: str) -> int:
        return _first_match(self.rank_pattern, module, self.rank)

    def scale_of(self, module: str) -> float:
        """Returns alpha / r, or alpha / sqrt(r) for rank-stabilised LoRA (arXiv 2312.03732)."""
        rank = self.rank_of(module)
        alpha = _first_match(self.alpha_pattern, module, self.alpha)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def targets(self, module: str) -> bool:
        """Returns whether PEFT would put an adapter on the module with this path."""
        if names_module(self.exclude_modules, module):
            return False
        if isinstance(self.target_modules, str):
            return module not in UNPACKABLE
        if not names_module(self.target_modules, module):
            return False
        if not self.layers_to_transform:
            return True
        for pattern in self.layers_pattern:
            found, index = pattern.layer_index(module)
            if found:
                return index in self.layers_to_transform
        return False


def read_config(descriptor: int) -> tuple[LoraConfig, dict[str, Any]]:
    """Reads and checks an open `adapter_config.json`; returns its meaning and the fields that determine it.
    Raises InspectionRefused.
    """
    size = os.fstat(descriptor).st_size
    if size > MAX_CONFIG_BYTES:
        raise InspectionRefused(CONFIG_FILE, f"larger than {MAX_CONFIG_BYTES} bytes")
    raw = decode_object(CONFIG_FILE, read_exactly(descriptor, 0, size))
    return parse_config(raw), {field: raw[field] for field in sorted(_READ & raw.keys())}


def parse_config(raw: Mapping[str, Any]) -> LoraConfig:
    """Parses the config. Raises InspectionRefused naming the field."""
    _refuse_unserved(raw)
    layers = raw.get("layers_to_transform")
    layers = [layers] if isinstance(layers, int) and not isinstance(layers, bool) else layers
    if layers is not None and not (isinstance(layers, list) and all(type(index) is int for index in layers)):
        raise InspectionRefused("layers_to_transform", "must be a layer index or a list of them")
    if layers is not None and len(layers) > MAX_PATTERNS:
        raise InspectionRefused("layers_to_transform", f"more than {MAX_PATTERNS} layers")
    steps = Steps()
    targets: Pattern | frozenset[str] | Literal["all-linear"] = ALL_LINEAR
    if raw.get("target_modules") != ALL_LINEAR:
        targets = _module_names(raw, "target_modules", steps)
    if not targets:
        raise InspectionRefused("target_modules", "must name at least one module")
    if isinstance(raw["target_modules"], str) and layers is not None:
        raise InspectionRefused("layers_to_transform", "cannot be combined with target_modules as a pattern")
    return LoraConfig(
        rank=_rank("r", raw.get("r", 8)),
        alpha=_alpha("lora_alpha", raw.get("lora_alpha", 8)),
        use_rslora=_flag(raw, "use_rslora"),
        rank_pattern=[(p, _rank("rank_pattern", v)) for p, v in _patterns(raw, "rank_pattern", steps)],
        alpha_pattern=[(p, _alpha("alpha_pattern", v)) for p, v in _patterns(raw, "alpha_pattern", steps)],
        target_modules=targets,
        exclude_modules=_module_names(raw, "exclude_modules", steps),
        layers_to_transform=frozenset(layers or ()),
        layers_pattern=[
            Pattern("layers_pattern", pattern, steps, _LAYER_INDEX)
            for pattern in _names(raw, "layers_pattern") or [_ANY_LIST]
        ],
    )


def _refuse_unserved(raw: Mapping[str, Any]) -> None:
    if str(raw.get("peft_type")).upper() != "LORA":
        raise InspectionRefused("peft_type", f"{raw.get('peft_type')!r} is not LORA")
    if raw.get("task_type") not in (None, "CAUSAL_LM"):
        raise InspectionRefused("task_type", f"{raw['task_type']!r} is not CAUSAL_LM")
    if raw.get("bias", "none") != "none":
        raise InspectionRefused("bias", f"{raw['bias']!r}: trained biases are not served")
    init = raw.get("init_lora_weights", True)
    if not (init is None or isinstance(init, bool) or init in _INITS):
        raise InspectionRefused(
            "init_lora_weights",
            f"{init!r} trains against a modified base; save the adapter converted to plain LoRA",
        )
    for field, value in raw.items():
        if field in _READ or field in _HARMLESS:
            continue
        # Features that PEFT adds are off by default, and change the output when they are on.
        if value not in (None, False, 0, "") and value != [] and value != {}:
            raise InspectionRefused(
                field, REFUSED.get(field, "this setting is unknown and may change the output")
            )


def _flag(raw: Mapping[str, Any], field: str) -> bool:
    value = raw.get(field, False)
    if not isinstance(value, bool):
        raise InspectionRefused(field, f"{value!r} is not true or false")
    return value


def _rank(field: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_RANK:
        raise InspectionRefused(field, f"rank {value!r} is not an integer between 1 and {MAX_RANK}")
    return value


def _alpha(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_ALPHA:
        raise InspectionRefused(field, f"alpha {value!r} is not a number above 0 and up to {MAX_ALPHA:.0f}")
    return float(value)


def _patterns(raw: Mapping[str, Any], field: str, steps: Steps) -> Iterator[tuple[Pattern, Any]]:
    value = raw.get(field) or {}
    if not isinstance(value, dict):
        raise InspectionRefused(field, "must map patterns to numbers")
    if len(value) > MAX_PATTERNS:
        raise InspectionRefused(field, f"more than {MAX_PATTERNS} patterns")
    for pattern, number in value.items():
        yield Pattern(field, pattern, steps, _TAIL), number


def _module_names(raw: Mapping[str, Any], field: str, steps: Steps) -> Pattern | frozenset[str]:
    """Returns a pattern of whole paths, or names that paths end in; no names when the field is not set."""
    value = raw.get(field)
    if isinstance(value, str) and value:
        return Pattern(field, value, steps)
    return frozenset(_names(raw, field))


def _names(raw: Mapping[str, Any], field: str) -> list[str]:
    """Returns the names in a field that holds a string or a list of strings."""
    value = raw.get(field)
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise InspectionRefused(field, "must be a pattern or a list of names")
    if len(value) > MAX_PATTERNS:
        raise InspectionRefused(field, f"more than {MAX_PATTERNS} names")
    return value


def names_module(targets: Pattern | frozenset[str], module: str) -> bool:
    """Applies PEFT's rule for targets: a pattern matches the whole path, a name matches a tail after
    a dot.
    """
    if isinstance(targets, Pattern):
        return targets.matches(module)
    return not targets.isdisjoint(path_tails(module))


def path_tails(module: str) -> Iterator[str]:
    """Yields the path and its tails after each dot."""
    parts = module.split(".")
    return (".".join(parts[start:]) for start in range(len(parts)))


def _first_match(patterns: Iterable[tuple[Pattern, Number]], module: str, default: Number) -> Number:
    return next((value for pattern, value in patterns if pattern.matches(module)), default)
