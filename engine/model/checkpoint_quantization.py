"""Parses how a checkpoint's linear layers are quantised: `quantization_config` of config.json, read strictly.

Supports three dialects (AWQ, GPTQ, compressed-tensors) and their defaults. Every field that would change a
weight and is not implemented is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

AWQ = "awq"
GPTQ = "gptq"
PACKED_INT4 = "pack-quantized"
FLOAT8 = "float-quantized"

GROUP_SIZES_MULTIPLE = 128
"""Scales are stored per 128 inputs; those of a larger group are repeated, a smaller group cannot
be stored."""

_INT4_FIELDS = {"bits", "group_size", "quant_method"}
_AWQ_IGNORED = {"backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse"}
_GPTQ_IGNORED = {
    *("batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_percent", "damp_auto_increment"),
    *("dataset", "disable_exllama", "exllama_config", "max_input_length", "meta", "model_file_base_name"),
    *("model_name_or_path", "model_seqlen", "module_name_preceding_first_block", "mse", "pad_token_id"),
    *(
        "quantizer",
        "static_groups",
        "tokenizer",
        "true_sequential",
        "use_cuda_fp16",
        "use_exllama",
        "backend",
    ),
    *("version", "act_group_aware"),
}
_COMPRESSED_IGNORED = {"global_compression_ratio", "quantization_status", "quant_method", "version"}
_WEIGHTS_IGNORED = {"observer", "observer_kwargs", "scale_dtype", "zp_dtype"}


@dataclass(frozen=True, slots=True)
class CheckpointQuantization:
    """How the linear layers of a checkpoint are stored."""

    layout: str
    """AWQ, GPTQ, PACKED_INT4 or FLOAT8."""
    group_size: int = 0
    """Inputs that share a scale; -1: all of them. 4-bit layouts only."""
    zero_points: bool = False
    """Whether zero points are stored. 4-bit layouts only."""
    zero_offset: int = 0
    """Added to stored zero points: GPTQ's first format stores one less."""
    activation_order: bool = False
    """Whether inputs are assigned to groups by a stored index."""
    per_channel: bool = False
    """FLOAT8: a scale per output channel, not per module."""
    input_scales: bool = False
    """FLOAT8: activation scales are stored. They are checked and not used: rows have their own."""
    ignored: tuple[str, ...] = ()
    """Modules left as floats: names, parts of names or "re:" patterns, by dialect."""

    def covers(self, name: str) -> bool:
        """Returns whether module `name` ("model.layers.0.mlp.up_proj", "lm_head") is quantised."""
        if self.layout == AWQ:
            return not any(part in name for part in self.ignored)
        for entry in self.ignored:
            if entry.startswith("re:"):
                if re.match(entry[3:], name):
                    return False
            elif name == entry:
                return False
        return True


def parse_quantization(raw: Mapping[str, Any]) -> CheckpointQuantization | None:
    """Parses a parsed config.json's field; returns None where the checkpoint holds floats.

    Raises:
        ValueError: a field is not supported; the message names it.
    """
    fields = raw.get("quantization_config")
    if fields is None:
        if raw.get("compression_config") is not None:
            raise ValueError("config.json: compression_config is not supported; quantization_config is")
        return None
    if not isinstance(fields, Mapping):
        raise ValueError(f"config.json: quantization_config must be an object, not {fields!r}")
    method = fields.get("quant_method")
    if method == "awq":
        return _parse_awq(fields)
    if method == "gptq":
        return _parse_gptq(fields)
    if method == "compressed-tensors":
        return _parse_compressed(fields)
    known = "'awq', 'gptq', 'compressed-tensors'"
    raise _refused("quant_method", method, f"one of {known}")


def _refused(name: str, value: Any, wanted: str) -> ValueError:
    return ValueError(f"config.json: quantization_config.{name} = {value!r} is not supported, only {wanted}")


def _require(
    fields: Mapping[str, Any], name: str, *allowed: Any, default: Any = None, prefix: str = ""
) -> Any:
    """Returns the field's value, which must be one of `allowed`, of the same type too, because True == 1."""
    value = fields.get(name, default)
    if not any(value == choice and type(value) is type(choice) for choice in allowed):
        raise _refused(prefix + name, value, " or ".join(repr(choice) for choice in allowed))
    return value


def _only(fields: Mapping[str, Any], known: set[str], prefix: str = "") -> None:
    for name in fields:
        if name not in known:
            raise ValueError(
                f"config.json: quantization_config.{prefix}{name} is not supported; it may change weights"
            )


def _group_size(fields: Mapping[str, Any], prefix: str = "") -> int:
    value = fields.get("group_size")
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refused(prefix + "group_size", value, "an integer")
    if value != -1 and (value <= 0 or value % GROUP_SIZES_MULTIPLE):
        raise _refused(prefix + "group_size", value, f"-1 or a multiple of {GROUP_SIZES_MULTIPLE}")
    return value


def _names(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = fields.get(name) or []
    if not isinstance(value, list) or not all(isinstance(entry, str) and entry for entry in value):
        raise _refused(name, value, "a list of names")
    for entry in value:
        if entry.startswith("re:"):
            try:
                re.compile(entry[3:])
            except re.error as error:
                raise ValueError(f"config.json: quantization_config.{name}: {entry!r}: {error}") from None
    return tuple(value)


def _parse_awq(fields: Mapping[str, Any]) -> CheckpointQuantization:
    _only(fields, _INT4_FIELDS | _AWQ_IGNORED | {"modules_to_not_convert", "version", "zero_point"})
    _require(fields, "bits", 4)
    _require(fields, "version", "gemm", "GEMM", default="gemm")
    _require(fields, "zero_point", True, default=True)
    return CheckpointQuantization(
        AWQ, _group_size(fields), zero_points=True, ignored=_names(fields, "modules_to_not_convert")
    )


def _parse_gptq(fields: Mapping[str, Any]) -> CheckpointQuantization:
    checked = {"checkpoint_format", "desc_act", "dynamic", "is_marlin_format", "lm_head", "pack_dtype", "sym"}
    _only(fields, _INT4_FIELDS | _GPTQ_IGNORED | checked | {"modules_in_block_to_quantize"})
    _require(fields, "bits", 4)
    _require(fields, "lm_head", False, default=False)
    _require(fields, "is_marlin_format", False, default=False)
    _require(fields, "pack_dtype", "int32", default="int32")
    _require(fields, "sym", True, False, default=True)
    for name in ("dynamic", "modules_in_block_to_quantize"):
        if fields.get(name):
            raise _refused(name, fields[name], "all linear modules alike")
    first = _require(fields, "checkpoint_format", "gptq", "gptq_v2", default="gptq") == "gptq"
    return CheckpointQuantization(
        GPTQ,
        _group_size(fields),
        zero_points=True,
        zero_offset=1 if first else 0,
        activation_order=_require(fields, "desc_act", True, False, default=False),
    )


def _parse_compressed(fields: Mapping[str, Any]) -> CheckpointQuantization:
    checked = {"config_groups", "format", "ignore", "kv_cache_scheme", "sparsity_config", "transform_config"}
    _only(fields, _COMPRESSED_IGNORED | checked)
    _require(fields, "quantization_status", "compressed", default="compressed")
    for name in ("kv_cache_scheme", "sparsity_config", "transform_config"):
        if fields.get(name):
            raise _refused(name, fields[name], "none")
    layout = _require(fields, "format", PACKED_INT4, FLOAT8)
    groups = fields.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise _refused("config_groups", groups, "one group")
    prefix = f"config_groups.{next(iter(groups))}."
    group = next(iter(groups.values()))
    if not isinstance(group, Mapping):
        raise _refused(prefix[:-1], group, "an object")
    _only(group, {"format", "input_activations", "output_activations", "targets", "weights"}, prefix)
    _require(group, "format", layout, None, prefix=prefix)
    _require(group, "targets", ["Linear"], prefix=prefix)
    _require(group, "output_activations", None, prefix=prefix)
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        raise _refused(prefix + "weights", weights, "an object")
    ignored = _names(fields, "ignore")
    if layout == PACKED_INT4:
        _require(group, "input_activations", None, prefix=prefix)
        return _parse_packed(weights, prefix + "weights.", ignored)
    return _parse_float8(weights, group.get("input_activations"), prefix, ignored)


def _check_weights(weights: Mapping[str, Any], prefix: str, bits: int, kind: str) -> None:
    checked = {
        "actorder",
        "block_structure",
        "dynamic",
        "group_size",
        "num_bits",
        "strategy",
        "symmetric",
        "type",
    }
    _only(weights, _WEIGHTS_IGNORED | checked, prefix)
    _require(weights, "num_bits", bits, prefix=prefix)
    _require(weights, "type", kind, prefix=prefix)
    _require(weights, "dynamic", False, default=False, prefix=prefix)
    _require(weights, "block_structure", None, prefix=prefix)


def _parse_packed(
    weights: Mapping[str, Any], prefix: str, ignored: tuple[str, ...]
) -> CheckpointQuantization:
    _check_weights(weights, prefix, 4, "int")
    by_channel = _require(weights, "strategy", "group", "channel", prefix=prefix) == "channel"
    if by_channel:
        _require(weights, "group_size", None, -1, prefix=prefix)
    order = _require(weights, "actorder", None, False, "weight", "static", "group", prefix=prefix)
    return CheckpointQuantization(
        PACKED_INT4,
        -1 if by_channel else _group_size(weights, prefix),
        zero_points=not _require(weights, "symmetric", True, False, default=True, prefix=prefix),
        activation_order=order == "group",
        ignored=ignored,
    )


def _parse_float8(
    weights: Mapping[str, Any], inputs: Any, prefix: str, ignored: tuple[str, ...]
) -> CheckpointQuantization:
    _check_weights(weights, prefix + "weights.", 8, "float")
    _require(weights, "symmetric", True, default=True, prefix=prefix + "weights.")
    _require(weights, "actorder", None, False, prefix=prefix + "weights.")
    strategy = _require(weights, "strategy", "tensor", "channel", prefix=prefix + "weights.")
    prefix += "input_activations"
    if not isinstance(inputs, Mapping):
        raise _refused(prefix, inputs, "8-bit floats")
    prefix += "."
    checked = {
        "actorder",
        "block_structure",
        "dynamic",
        "group_size",
        "num_bits",
        "strategy",
        "symmetric",
        "type",
    }
    _only(inputs, _WEIGHTS_IGNORED | checked, prefix)
    _require(inputs, "num_bits", 8, prefix=prefix)
    _require(inputs, "type", "float", prefix=prefix)
    _require(inputs, "symmetric", True, default=True, prefix=prefix)
    _require(inputs, "strategy", "tensor", "token", prefix=prefix)
    dynamic = _require(inputs, "dynamic", True, False, default=False, prefix=prefix)
    return CheckpointQuantization(
        FLOAT8, per_channel=strategy == "channel", input_scales=not dynamic, ignored=ignored
    )
