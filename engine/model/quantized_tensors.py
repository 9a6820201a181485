"""Reads the tensors of quantised linear layers as AWQ, GPTQ and compressed-tensors store them.

Knows which tensors a module has in each layout, with shapes and types, and turns them into codes and scales.

Sources: the formats as AutoAWQ (WQLinear_GEMM), AutoGPTQ and compressed-tensors write them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.checkpoint_quantization import AWQ, FLOAT8, GPTQ, CheckpointQuantization
from kernels.linear_int4.weight import GROUP

PER_WORD = 8
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which nibble of a word holds each of eight neighbouring channels; AWQ's kernels want pairs."""
FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor that a checkpoint must have."""

    shape: tuple[int, ...]
    types: tuple[str, ...] = (*FLOATS, "F64")
    """Names of safetensors types."""
    scalar: bool = False
    """Whether any shape with one element is accepted."""

    def admits(self, shape: tuple[int, ...]) -> bool:
        return all(size == 1 for size in shape) if self.scalar else shape == self.shape


@dataclass(frozen=True, slots=True)
class Codes:
    """A 4-bit module: W[n, k] = (code[n, k] - zero[n, g]) * scale[n, g], inputs in the order `order_K`."""

    codes_NK: Tensor
    scale_NG: Tensor
    zero_NG: Tensor | None
    order_K: Tensor | None

    def part(self, name: str, rows: slice, columns: slice) -> Codes:
        """Returns the codes of some outputs and inputs. `name` is the module's, for errors.

        Raises:
            ValueError: inputs are reordered, or cut within a group that shares a scale.
        """
        groups = columns
        if columns != slice(None):
            if self.order_K is not None:
                raise ValueError(
                    f"tensor_parallel: {name} stores its inputs in another order (g_idx), which cannot be "
                    "divided; use a checkpoint quantised without activation order"
                )
            if columns.start % GROUP or columns.stop % GROUP:
                raise ValueError(
                    f"tensor_parallel: {name} would be cut at inputs {columns.start} and {columns.stop}, "
                    f"within a group of {GROUP} with one scale; use fewer ranks"
                )
            groups = slice(columns.start // GROUP, columns.stop // GROUP)
        zero_NG = None if self.zero_NG is None else self.zero_NG[rows, groups].contiguous()
        scale_NG = self.scale_NG[rows, groups].contiguous()
        return Codes(self.codes_NK[rows, columns].contiguous(), scale_NG, zero_NG, self.order_K)


def stored_tensors(
    quantization: CheckpointQuantization, out_features: int, in_features: int
) -> dict[str, StoredTensor]:
    """Returns the tensors of one module by the end of their name ("qweight"), besides its bias.

    Raises:
        ValueError: the layout cannot hold a module of this shape.
    """
    if quantization.layout == FLOAT8:
        return _stored_float8(quantization, out_features, in_features)
    groups = _num_groups(quantization, in_features)
    if quantization.layout == AWQ:
        _check_divides(out_features, "outputs", AWQ)
        return {
            "qweight": StoredTensor((in_features, out_features // PER_WORD), ("I32",)),
            "qzeros": StoredTensor((groups, out_features // PER_WORD), ("I32",)),
            "scales": StoredTensor((groups, out_features), FLOATS),
        }
    _check_divides(in_features, "inputs", quantization.layout)
    if quantization.layout == GPTQ:
        _check_divides(out_features, "outputs", GPTQ)
        return {
            "qweight": StoredTensor((in_features // PER_WORD, out_features), ("I32",)),
            "qzeros": StoredTensor((groups, out_features // PER_WORD), ("I32",)),
            "scales": StoredTensor((groups, out_features), FLOATS),
            "g_idx": StoredTensor((in_features,), ("I32",)),
        }
    tensors = {
        "weight_packed": StoredTensor((out_features, in_features // PER_WORD), ("I32",)),
        "weight_scale": StoredTensor((out_features, groups), FLOATS),
        "weight_shape": StoredTensor((2,), ("I64", "I32")),
    }
    if quantization.zero_points:
        _check_divides(out_features, "outputs", quantization.layout)
        tensors["weight_zero_point"] = StoredTensor((out_features // PER_WORD, groups), ("I32",))
    if quantization.activation_order:
        tensors["weight_g_idx"] = StoredTensor((in_features,), ("I32",))
    return tensors


def _stored_float8(
    quantization: CheckpointQuantization, out_features: int, in_features: int
) -> dict[str, StoredTensor]:
    tensors = {
        "weight": StoredTensor((out_features, in_features), ("F8_E4M3",)),
        "weight_scale": StoredTensor((out_features, 1), FLOATS, scalar=not quantization.per_channel),
    }
    if quantization.input_scales:
        tensors["input_scale"] = StoredTensor((1,), FLOATS, scalar=True)
    return tensors


def read_codes(quantization: CheckpointQuantization, name: str, read: Callable[[str], Tensor]) -> Codes:
    """Returns the codes of a 4-bit module.

    Args:
        name: of the module, for errors.
        read: returns its tensor by the end of the name, of the shape and type in `stored_tensors`.

    Raises:
        ValueError: tensors contradict each other or cannot be served.
    """
    if quantization.layout == AWQ:
        codes_NK = _unpack(read("qweight"), 1, AWQ_PLACES).t()
        zero_NG = _unpack(read("qzeros"), 1, AWQ_PLACES).t()
        scale_NG, g_idx = read("scales").t(), None
    elif quantization.layout == GPTQ:
        codes_NK = _unpack(read("qweight"), 0).t()
        zero_NG = _unpack(read("qzeros"), 1).t() + quantization.zero_offset
        scale_NG, g_idx = read("scales").t(), read("g_idx")
    else:
        codes_NK, scale_NG = _unpack(read("weight_packed"), 1), read("weight_scale")
        zero_NG = _unpack(read("weight_zero_point"), 0) if quantization.zero_points else None
        g_idx = read("weight_g_idx") if quantization.activation_order else None
        if read("weight_shape").tolist() != list(codes_NK.shape):
            raise ValueError(
                f"{name}.weight_shape is {read('weight_shape').tolist()}, not {[*codes_NK.shape]}"
            )
    in_features = codes_NK.shape[1]
    size = quantization.group_size if quantization.group_size != -1 else in_features
    order_K = None if g_idx is None else _order(g_idx, size, name)
    if order_K is not None:
        codes_NK = codes_NK[:, order_K]
    return Codes(
        codes_NK.contiguous(),
        _scales(_repeat(scale_NG, size, in_features), name),
        None if zero_NG is None else _repeat(zero_NG, size, in_features),
        order_K,
    )


def _check_divides(features: int, what: str, layout: str) -> None:
    if features % PER_WORD:
        raise ValueError(f"{layout}: {features} {what} of a module are no multiple of {PER_WORD}")


def _num_groups(quantization: CheckpointQuantization, in_features: int) -> int:
    if quantization.group_size == -1:
        return 1
    if in_features % quantization.group_size:
        raise ValueError(
            f"quantization_config: group_size {quantization.group_size} does not divide {in_features} inputs"
        )
    return in_features // quantization.group_size


def _unpack(words: Tensor, dim: int, places: tuple[int, ...] = tuple(range(PER_WORD))) -> Tensor:
    """Returns uint8, eight times as long along `dim`; element i of each eight is nibble `places[i]`."""
    shifts = torch.tensor(places, dtype=torch.int32, device=words.device) * 4
    if dim == 1:
        return ((words[..., None] >> shifts) & 15).to(torch.uint8).flatten(1)
    return ((words[:, None, :] >> shifts[:, None]) & 15).to(torch.uint8).flatten(0, 1)


def _repeat(value_NG: Tensor, size: int, in_features: int) -> Tensor:
    """Returns a value for every `GROUP` inputs from one for every `size`, a multiple of it or all."""
    starts = torch.arange(0, in_features, GROUP, device=value_NG.device) // size
    return value_NG[:, starts].contiguous()


def _scales(scale_NG: Tensor, name: str) -> Tensor:
    """Returns bf16 and fp16 scales as they are; fp32 ones as one of them where that is exact."""
    if scale_NG.dtype != torch.float32:
        return scale_NG
    for dtype in (torch.bfloat16, torch.float16):
        narrow = scale_NG.to(dtype)
        if torch.equal(narrow.float(), scale_NG):
            return narrow
    raise ValueError(f"{name}: scales are fp32 numbers that neither bf16 nor fp16 can hold")


def _order(g_idx: Tensor, size: int, name: str) -> Tensor | None:
    """Returns the inputs sorted by group; None where they are sorted already."""
    in_features = len(g_idx)
    wanted = torch.arange(in_features, device=g_idx.device) // size
    if torch.equal(g_idx.long(), wanted):
        return None
    order_K = torch.argsort(g_idx, stable=True)
    if not torch.equal(g_idx[order_K].long(), wanted):
        raise ValueError(f"{name}: g_idx does not assign {size} inputs to every group")
    return order_K
