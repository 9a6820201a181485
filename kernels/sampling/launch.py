"""Lays a step's draws out over the device: the order of kernels, their grids and block sizes.

`kernel.py`, `truncation.py` and `row_search.py` say what is computed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor

from kernels.sampling import kernel as kernels
from kernels.sampling.step import (
    GATHER_BLOCK,
    Drawn,
    SamplingInputs,
    Scratch,
    TokenMasks,
    block_size,
    num_blocks,
)


def launch(
    logits_SV: Tensor,
    parameters: SamplingInputs,
    drawn: Drawn,
    scratch: Scratch,
    *,
    draws: bool = True,
    truncates: bool = True,
    masks: TokenMasks | None = None,
    uniforms_S: Tensor | None = None,
) -> None:
    """Issues the kernels: one for greedy rows, one more for draws, three more for top-k and top-p."""
    num_positions, vocab_size = logits_SV.shape
    null_row, rows_S, masked = drawn.next_ids_R.shape[0] - 1, parameters.rows_S, masks is not None
    common = (logits_SV, logits_SV.stride(0), vocab_size, null_row, rows_S, *_masking(masks, rows_S))
    block = block_size(num_positions, vocab_size)
    blocks = num_blocks(vocab_size, block)
    grid = (blocks, num_positions)
    kernels.largest_kernel[grid](
        *common,
        parameters.places_S,
        scratch.best_SB,
        scratch.tickets_S,
        scratch.largest_S,
        drawn.ids_S,
        drawn.next_ids_R,
        drawn.finite_S,
        BLOCK=block,
        BLOCKS=triton.next_power_of_2(blocks),
        MASKED=masked,
        num_warps=8,
    )
    if not draws:
        return
    if truncates:
        _find_limits(logits_SV, common, parameters, scratch, masked)
    kernels.draw_kernel[grid](
        *common,
        parameters.places_S,
        parameters.temperature_S,
        parameters.top_k_S,
        parameters.top_p_S,
        parameters.min_p_S,
        parameters.seeds_S,
        parameters.positions_S,
        scratch.masses_SB if uniforms_S is None else uniforms_S,
        scratch.largest_S,
        scratch.limit_S,
        scratch.masses_SB,
        scratch.tickets_S,
        drawn.ids_S,
        drawn.next_ids_R,
        BLOCK=block,
        BLOCKS=triton.next_power_of_2(blocks),
        TILE=min(block, kernels.TILE),
        HAS_UNIFORMS=uniforms_S is not None,
        MASKED=masked,
        num_warps=4,
    )


def _masking(masks: TokenMasks | None, rows_S: Tensor) -> tuple[Tensor, Tensor, int]:
    """Returns the kernels' arguments for masks. Without masks the pointers are not read."""
    if masks is None:
        return rows_S, rows_S, 0
    return masks.masks_S, masks.bits_MW, masks.bits_MW.stride(0)


def _find_limits(
    logits_SV: Tensor, common: tuple[Any, ...], parameters: SamplingInputs, scratch: Scratch, masked: bool
) -> None:
    """Issues the kernels that find the least logit which top-k and top-p keep, of every row.

    Args:
        common: the arguments that every kernel begins with.
    """
    num_positions, vocab_size = logits_SV.shape
    shift = 16 if logits_SV.dtype is torch.bfloat16 else 0
    cut = (
        *common,
        parameters.temperature_S,
        parameters.top_k_S,
        parameters.top_p_S,
        scratch.largest_S,
        scratch.bottom_S,
    )
    listed = (scratch.counts_S, scratch.weights_SB, scratch.list_SL)
    gathered = num_blocks(vocab_size, GATHER_BLOCK)
    kernels.sample_kernel[num_positions,](*cut, SHIFT=shift, MASKED=masked, num_warps=8)
    kernels.gather_kernel[gathered, num_positions](
        *cut, *listed, BLOCK=GATHER_BLOCK, LANES=256, MASKED=masked, num_warps=8
    )
    kernels.threshold_kernel[num_positions,](
        *cut,
        *listed,
        scratch.limit_S,
        gathered,
        BLOCKS=triton.next_power_of_2(gathered),
        SHIFT=shift,
        WIDTH=kernels.WIDTH,
        MASKED=masked,
        num_warps=16,
    )


def uniform(seeds_S: Tensor, positions_S: Tensor) -> Tensor:
    """The kernels' uniform by itself."""
    out_S = torch.empty(len(seeds_S), dtype=torch.float64, device=seeds_S.device)
    size = len(seeds_S)
    kernels.uniform_kernel[triton.cdiv(size, 256),](seeds_S, positions_S, out_S, size, BLOCK=256)
    return out_S


def greedy(logits_SV: Tensor) -> tuple[Tensor, Tensor]:
    """(ids int64, finite bool) of all rows."""
    drawn, parameters, scratch = _for_all(logits_SV)
    launch(logits_SV, parameters, drawn, scratch, draws=False)
    return drawn.ids_S.long(), drawn.finite_S.bool()


def draw(
    logits_SV: Tensor,
    temperature_S: Tensor,
    top_k_S: Tensor,
    top_p_S: Tensor,
    min_p_S: Tensor,
    uniforms_S: Tensor,
) -> Tensor:
    """Ids (int64) of all rows at given uniforms."""
    drawn, parameters, scratch = _for_all(logits_SV)
    parameters = replace(
        parameters,
        temperature_S=temperature_S,
        top_k_S=top_k_S.clamp(max=logits_SV.shape[1]).int(),
        top_p_S=top_p_S,
        min_p_S=min_p_S,
    )
    launch(logits_SV, parameters, drawn, scratch, uniforms_S=uniforms_S.contiguous())
    return drawn.ids_S.long()


def _for_all(logits_SV: Tensor) -> tuple[Drawn, SamplingInputs, Scratch]:
    """Every position is its own place and its own row."""
    size, device = len(logits_SV), logits_SV.device
    order_S = torch.arange(size, dtype=torch.int32, device=device)
    zeros_S = torch.zeros(size, device=device)
    drawn = Drawn(
        torch.empty_like(order_S),
        torch.empty(size, dtype=torch.uint8, device=device),
        torch.empty(size + 1, dtype=torch.int32, device=device),
    )
    parameters = SamplingInputs(
        zeros_S, order_S, zeros_S, zeros_S, order_S.long(), order_S.long(), rows_S=order_S, places_S=order_S
    )
    return drawn, parameters, Scratch(size, logits_SV.shape[1], device)
