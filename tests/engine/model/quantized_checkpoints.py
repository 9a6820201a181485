"""Tiny quantised checkpoints, packed bit by bit as the public formats describe, and what they must mean.

Deliberately unlike the loader: words are put together from their nibbles one place after the other, following
AutoAWQ's WQLinear_GEMM, AutoGPTQ's QuantLinear and compressed-tensors' pack_to_int32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble i of a word has channel AWQ_ORDER[i] of eight."""


@dataclass
class Packed:
    """One module: its tensors by the end of their name, and the weight [N, K] they stand for."""

    tensors: dict[str, Tensor]
    weight: Tensor


Packer = Callable[[Tensor, torch.Generator], Packed]


def words_along_rows(values: Tensor, order: Sequence[int] = range(8)) -> Tensor:
    """[R, C] -> int32 [R, C / 8], from the lowest four bits up."""
    nibbles = values.long().unflatten(1, (-1, 8))
    words = torch.zeros_like(nibbles[:, :, 0])
    for place, channel in enumerate(order):
        words += nibbles[:, :, channel] << (4 * place)
    return torch.where(words < 1 << 31, words, words - (1 << 32)).int().contiguous()


def words_along_columns(values: Tensor) -> Tensor:
    """[R, C] -> int32 [R / 8, C]."""
    return words_along_rows(values.t()).t().contiguous()


def rounded(
    weight: Tensor, groups: Tensor, dtype: torch.dtype, symmetric: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(codes [N, K] 0..15, scales [N, G], zeros [N, G], the weight they stand for); groups: of each input."""
    num_groups = int(groups.max()) + 1
    scales, zeros = torch.empty(len(weight), num_groups, dtype=dtype), torch.empty(len(weight), num_groups)
    for group in range(num_groups):
        part = weight[:, groups == group]
        low, high = part.amin(1).clamp_max(0), part.amax(1).clamp_min(0)
        scale = torch.maximum(high, -low) / 7.5 if symmetric else (high - low) / 15
        scales[:, group] = scale.to(dtype)
        zeros[:, group] = 8 if symmetric else torch.round(-low / scales[:, group].float()).clamp(1, 15)
    wide_scale, wide_zero = scales.float()[:, groups], zeros[:, groups]
    codes = (torch.round(weight / wide_scale) + wide_zero).clamp(0, 15)
    return codes.int(), scales, zeros.int(), (codes - wide_zero) * wide_scale


def plain_groups(in_features: int, group_size: int) -> Tensor:
    return torch.arange(in_features) // (in_features if group_size == -1 else group_size)


def awq(group_size: int) -> Packer:
    def pack(weight: Tensor, _: torch.Generator) -> Packed:
        groups = plain_groups(weight.shape[1], group_size)
        codes, scales, zeros, meant = rounded(weight, groups, torch.float16, symmetric=False)
        tensors = {
            "qweight": words_along_rows(codes.t(), AWQ_ORDER),
            "qzeros": words_along_rows(zeros.t(), AWQ_ORDER),
            "scales": scales.t().contiguous(),
        }
        return Packed(tensors, meant)

    return pack


def gptq(group_size: int, symmetric: bool, act_order: bool = False, first_format: bool = True) -> Packer:
    shuffles: dict[int, Tensor] = {}

    def pack(weight: Tensor, generator: torch.Generator) -> Packed:
        in_features = weight.shape[1]
        groups = plain_groups(in_features, group_size)
        if act_order:
            # Modules that read the same inputs are quantised in the same order of them.
            if in_features not in shuffles:
                shuffles[in_features] = torch.randperm(in_features, generator=generator)
            groups = groups[shuffles[in_features]]
        codes, scales, zeros, meant = rounded(weight, groups, torch.float16, symmetric)
        tensors = {
            "qweight": words_along_columns(codes.t()),
            "qzeros": words_along_rows(zeros.t() - (1 if first_format else 0)),
            "scales": scales.t().contiguous(),
            "g_idx": groups.to(torch.int32),
            "bias": torch.zeros(len(weight), dtype=torch.float16),
        }
        return Packed(tensors, meant)

    return pack


def packed_int4(group_size: int, symmetric: bool, act_order: bool = False) -> Packer:
    shuffles: dict[int, Tensor] = {}

    def pack(weight: Tensor, generator: torch.Generator) -> Packed:
        in_features = weight.shape[1]
        groups = plain_groups(in_features, group_size)
        if act_order:
            if in_features not in shuffles:
                shuffles[in_features] = torch.randperm(in_features, generator=generator)
            groups = groups[shuffles[in_features]]
        codes, scales, zeros, meant = rounded(weight, groups, torch.bfloat16, symmetric)
        tensors = {
            "weight_packed": words_along_rows(codes),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            tensors["weight_zero_point"] = words_along_columns(zeros)
        if act_order:
            tensors["weight_g_idx"] = groups.to(torch.int32)
        return Packed(tensors, meant)

    return pack


def float8(per_channel: bool, static: bool) -> Packer:
    def pack(weight: Tensor, _: torch.Generator) -> Packed:
        largest = weight.abs().amax(1, keepdim=True) if per_channel else weight.abs().max().reshape(1)
        scale = (largest / 448).to(torch.bfloat16)
        values = (weight / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
        tensors = {"weight": values, "weight_scale": scale}
        if static:
            tensors["input_scale"] = torch.tensor([0.01], dtype=torch.bfloat16)
        return Packed(tensors, values.float() * scale.float())

    return pack


def compressed(layout: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
        "global_compression_ratio": 1.5,
        "sparsity_config": {},
    }


def int4_weights(group_size: int | None, symmetric: bool, actorder: str | None = None) -> dict[str, Any]:
    strategy = "channel" if group_size in (None, -1) else "group"
    return {
        **{"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": strategy, "dynamic": False},
        **{"group_size": group_size, "actorder": actorder, "observer": "minmax", "observer_kwargs": {}},
        "block_structure": None,
    }


def float8_numbers(strategy: str, dynamic: bool) -> dict[str, Any]:
    return {
        **{"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy, "dynamic": dynamic},
        **{"group_size": None, "actorder": None, "observer": None, "block_structure": None},
    }


@dataclass
class Layout:
    """A format to write: what config.json says and who packs."""

    packer: Packer
    fields: dict[str, Any]
    overrides: dict[str, Any] = field(default_factory=dict)


AWQ_FIELDS = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ_FIELDS = {
    **{"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    **{"damp_percent": 0.1, "true_sequential": True, "static_groups": False},
}


def layouts() -> dict[str, Layout]:
    """Made anew, because packers remember the order of inputs."""
    packed = "pack-quantized"
    token = float8_numbers("token", True)
    return {
        "awq": Layout(awq(128), AWQ_FIELDS),
        "awq, one group": Layout(awq(-1), AWQ_FIELDS | {"group_size": -1, "modules_to_not_convert": None}),
        "gptq": Layout(gptq(128, True), GPTQ_FIELDS),
        "gptq, zero points, groups of 256": Layout(
            gptq(256, False), GPTQ_FIELDS | {"sym": False, "group_size": 256, "checkpoint_format": "gptq"}
        ),
        "gptq, activation order": Layout(
            gptq(128, False, True), GPTQ_FIELDS | {"sym": False, "desc_act": True}
        ),
        "gptq, second format": Layout(
            gptq(128, False, first_format=False), GPTQ_FIELDS | {"sym": False, "checkpoint_format": "gptq_v2"}
        ),
        "int4": Layout(packed_int4(128, True), compressed(packed, int4_weights(128, True), None)),
        "int4, zero points": Layout(
            packed_int4(128, False), compressed(packed, int4_weights(128, False), None)
        ),
        "int4, channels": Layout(packed_int4(-1, True), compressed(packed, int4_weights(None, True), None)),
        "int4, activation order": Layout(
            packed_int4(128, True, True), compressed(packed, int4_weights(128, True, "group"), None)
        ),
        "fp8": Layout(
            float8(False, True),
            compressed("float-quantized", float8_numbers("tensor", False), float8_numbers("tensor", False)),
        ),
        "fp8, channels": Layout(
            float8(True, False), compressed("float-quantized", float8_numbers("channel", False), token)
        ),
    }


def write(model: PreTrainedModel, folder: Path, layout: Layout, kept: Sequence[str] = ()) -> PreTrainedModel:
    """Saves `model` quantised into `folder`, and makes its weights what the checkpoint means.

    Args:
        kept: ends of names of linear modules that stay floats.
    """
    model.save_pretrained(folder)
    generator = torch.Generator().manual_seed(1)
    tensors: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            module = name.removesuffix(".weight")
            if (
                module.split(".")[-1] not in MODULES
                or not name.endswith(".weight")
                or module.endswith(tuple(kept))
            ):
                tensors.setdefault(name, parameter.clone())
                continue
            packed = layout.packer(parameter.float(), generator)
            parameter.copy_(packed.weight)
            for kind, tensor in packed.tensors.items():
                biased = kind == "bias" and f"{module}.bias" in model.state_dict()
                if not biased:
                    tensors[f"{module}.{kind}"] = tensor
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    save_file(tensors, folder / "model.safetensors")
    set_fields(folder, layout.fields)
    return model


def set_fields(folder: Path, fields: dict[str, Any] | None) -> None:
    """Replaces quantization_config."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = fields
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
