"""What an `adapter_config.json` asks for, read as PEFT reads it, or the field that cannot be served.

Fields are allowed, not forbidden: one that is unknown and set may change the output, so that it is refused.
Owns the file's meaning. Refuses to know tensors and files of weights.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from adapters.inspection.errors import CONFIG_FILE, InspectionRefused
from adapters.inspection.header import read_exactly
from adapters.inspection.strict_json import decode_object
from engine.lora.manifest import MAX_RANK

MAX_CONFIG_BYTES = 1 << 20
MAX_PATTERNS = 1024
MAX_PATTERN = 1024
"""Characters."""
MAX_REPEATS = 6
MAX_ALPHA = 1e6
"""People train with alpha between 1 and 1024; far beyond, the number is a mistake or an attack."""

UNPACKABLE = ("lm_head", "model.embed_tokens")
"""What PEFT can adapt and the kernels do not."""

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
"""Initialisations that leave the base as it is; PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA subtract from it."""


@dataclass(frozen=True)
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
        return _first_match(self._rank_patterns, module, self.rank)

    def scale_of(self, module: str) -> float:
        """alpha / r, or alpha / sqrt(r) for rank-stabilised LoRA (arXiv 2312.03732)."""
        rank = self.rank_of(module)
        alpha = _first_match(self._alpha_patterns, module, self.alpha)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def targets(self, module: str) -> bool:
        """Whether PEFT would put an adapter on the module of this path."""
        if self.exclude_modules and names_module(self.exclude_modules, module):
            return False
        if self.target_modules == "all-linear":
            return module not in UNPACKABLE
        if not names_module(self.target_modules, module):
            return False
        if not self.layers_to_transform:
            return True
        for pattern in self._layers_patterns:
            found = pattern.match(module)
            if found:
                return found["index"] is not None and int(found["index"]) in self.layers_to_transform
        return False

    # Compiled once: `re` itself keeps 512, and an adapter may have a pattern for every module.
    @functools.cached_property
    def _rank_patterns(self) -> list[tuple[re.Pattern[str], int]]:
        return [(re.compile(_tail(pattern)), rank) for pattern, rank in self.rank_pattern.items()]

    @functools.cached_property
    def _alpha_patterns(self) -> list[tuple[re.Pattern[str], float]]:
        return [(re.compile(_tail(pattern)), alpha) for pattern, alpha in self.alpha_pattern.items()]

    @functools.cached_property
    def _layers_patterns(self) -> list[re.Pattern[str]]:
        return [re.compile(_layer_index(pattern)) for pattern in self.layers_pattern or [r"[^.]*"]]


def read_config(descriptor: int) -> tuple[LoraConfig, dict[str, Any]]:
    """Read and check an open `adapter_config.json`: what it means, and those of its fields that say so.
    Raises InspectionRefused.
    """
    size = os.fstat(descriptor).st_size
    if size > MAX_CONFIG_BYTES:
        raise InspectionRefused(CONFIG_FILE, f"larger than {MAX_CONFIG_BYTES} bytes")
    raw = decode_object(CONFIG_FILE, read_exactly(descriptor, 0, size))
    return parse_config(raw), {field: raw[field] for field in sorted(_READ & raw.keys())}


def parse_config(raw: Mapping[str, Any]) -> LoraConfig:
    """Raises InspectionRefused naming the field."""
    _refuse_unserved(raw)
    layers = raw.get("layers_to_transform")
    layers = [layers] if isinstance(layers, int) and not isinstance(layers, bool) else layers
    if layers is not None and not (isinstance(layers, list) and all(type(index) is int for index in layers)):
        raise InspectionRefused("layers_to_transform", "must be a layer index or a list of them")
    if layers is not None and len(layers) > MAX_PATTERNS:
        raise InspectionRefused("layers_to_transform", f"more than {MAX_PATTERNS} layers")
    targets = _module_names(raw, "target_modules")
    if not targets:
        raise InspectionRefused("target_modules", "must name at least one module")
    if isinstance(targets, str) and layers is not None:
        raise InspectionRefused("layers_to_transform", "cannot go with target_modules as a pattern")
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
        # What PEFT adds over time is off by default and changes the output when on.
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


def _patterns(raw: Mapping[str, Any], field: str) -> dict[str, Any]:
    value = raw.get(field) or {}
    if not isinstance(value, dict):
        raise InspectionRefused(field, "must map patterns to numbers")
    if len(value) > MAX_PATTERNS:
        raise InspectionRefused(field, f"more than {MAX_PATTERNS} patterns")
    for pattern in value:
        _check_pattern(field, pattern, _tail)
    return value


def _module_names(raw: Mapping[str, Any], field: str, *, compiled: bool = False) -> str | list[str]:
    """A pattern, or a list of names (`compiled`: of patterns); empty when not given."""
    value = raw.get(field)
    if value is None:
        return []
    used_as = _layer_index if compiled else str
    if isinstance(value, str):
        _check_pattern(field, value, used_as)
        return value
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise InspectionRefused(field, "must be a pattern or a list of names")
    if len(value) > MAX_PATTERNS:
        raise InspectionRefused(field, f"more than {MAX_PATTERNS} names")
    if compiled:
        for pattern in value:
            _check_pattern(field, pattern, used_as)
    return value


def _check_pattern(field: str, pattern: str, used_as: Callable[[str], str]) -> None:
    """Refuse patterns that are no regular expression where they are used, and those that could keep the
    matcher busy for ever.
    """
    if len(pattern) > MAX_PATTERN:
        raise InspectionRefused(field, f"a pattern is longer than {MAX_PATTERN} characters")
    if re.search(r"\)[*+{]", pattern) or len(re.findall(r"[*+{]", pattern)) > MAX_REPEATS:
        reason = f"{pattern[:80]!r} is too complex: no repeated groups, at most {MAX_REPEATS} repetitions"
        raise InspectionRefused(field, reason)
    try:
        re.compile(pattern)
        re.compile(used_as(pattern))
    except (re.error, ValueError, RecursionError, OverflowError) as error:
        raise InspectionRefused(field, f"{pattern!r} is not a regular expression: {error}") from error


def _tail(pattern: str) -> str:
    """PEFT's rule for ranks and alphas: what matches a whole tail of the path, from a dot on."""
    return rf"(.*\.)?({pattern})$"


def _layer_index(pattern: str) -> str:
    return rf"(?:^|.*?\.){pattern}\.(?P<index>\d+)\."


def names_module(targets: str | list[str], module: str) -> bool:
    """PEFT's rule for targets: a pattern of the whole path, or names that the path ends in."""
    if isinstance(targets, str):
        return re.fullmatch(targets, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in targets)


def _first_match(patterns: Sequence[tuple[re.Pattern[str], Number]], module: str, default: Number) -> Number:
    for pattern, value in patterns:
        if pattern.match(module):
            return value
    return default
