"""How a step's draws are laid out over the device: the order of kernels, their grids and block sizes.

Refuses to know requests; `kernel.py` and `truncation.py` say what is computed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
from torch import Tensor

from kernels.sampling import kernel as kernels
from kernels.sampling.step import DRAW_BLOCK, Asked, Drawn, Scratch, block_size, num_blocks

WIDTH = 2048
"""Two tokens for each thread of the passes over a whole row: seven sums each are 28 registers."""


def launch(
    logits_SV: Tensor,
    asked: Asked,
    drawn: Drawn,
    scratch: Scratch,
    *,
    draws: bool = True,
    truncates: bool = True,
    uniforms_S: Tensor | None = None,
) -> None:
    """Issue the kernels: one for greedy rows, one more for draws, three more for top-k and top-p."""
    num_positions, vocab_size = logits_SV.shape
    null_row = drawn.next_ids_R.shape[0] - 1
    common = (logits_SV, logits_SV.stride(0), vocab_size, null_row, asked.rows_S)
    block = block_size(num_positions, vocab_size)
    blocks = num_blocks(vocab_size, block)
    kernels.largest_kernel[blocks, num_positions](
        *common,
        asked.places_S,
        scratch.best_SB,
        scratch.where_SB,
        scratch.tickets_S,
        scratch.largest_S,
        drawn.ids_S,
        drawn.next_ids_R,
        drawn.finite_S,
        BLOCK=block,
        BLOCKS=triton.next_power_of_2(blocks),
        num_warps=8,
    )
    if not draws:
        return
    blocks = num_blocks(vocab_size, DRAW_BLOCK)
    sizes = {"BLOCK": DRAW_BLOCK, "BLOCKS": triton.next_power_of_2(blocks)}
    grid = (blocks, num_positions)
    if truncates:
        common_cut = (*common, asked.temperature_S, asked.top_k_S, asked.top_p_S, scratch.largest_S)
        bracket = (scratch.bracket_S2, scratch.wanted_S2, scratch.counts_S, scratch.list_SL)
        kernels.survey_kernel[grid](*common_cut, scratch.survey_SBJ, BLOCK=DRAW_BLOCK, num_warps=8)
        kernels.gather_kernel[grid](*common_cut, scratch.survey_SBJ, *bracket, **sizes, num_warps=8)
        kernels.threshold_kernel[num_positions,](
            *common_cut, *bracket, scratch.limit_S, WIDTH=WIDTH, num_warps=32
        )
    kernels.draw_kernel[grid](
        *common,
        asked.places_S,
        asked.temperature_S,
        asked.top_k_S,
        asked.top_p_S,
        asked.min_p_S,
        asked.seeds_S,
        asked.positions_S,
        scratch.wanted_S2 if uniforms_S is None else uniforms_S,
        scratch.largest_S,
        scratch.limit_S,
        scratch.masses_SB,
        scratch.tickets_S,
        drawn.ids_S,
        drawn.next_ids_R,
        **sizes,
        HAS_UNIFORMS=uniforms_S is not None,
        num_warps=8,
    )


def uniform(seeds_S: Tensor, positions_S: Tensor) -> Tensor:
    """The kernels' uniform by itself."""
    out_S = torch.empty(len(seeds_S), dtype=torch.float64, device=seeds_S.device)
    size = len(seeds_S)
    kernels.uniform_kernel[triton.cdiv(size, 256),](seeds_S, positions_S, out_S, size, BLOCK=256)
    return out_S


def greedy(logits_SV: Tensor) -> tuple[Tensor, Tensor]:
    """(ids int64, finite bool) of all rows."""
    drawn, asked, scratch = _for_all(logits_SV)
    launch(logits_SV, asked, drawn, scratch, draws=False)
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
    drawn, asked, scratch = _for_all(logits_SV)
    asked = replace(
        asked,
        temperature_S=temperature_S,
        top_k_S=top_k_S.clamp(max=logits_SV.shape[1]).int(),
        top_p_S=top_p_S,
        min_p_S=min_p_S,
    )
    launch(logits_SV, asked, drawn, scratch, uniforms_S=uniforms_S.contiguous())
    return drawn.ids_S.long()


def _for_all(logits_SV: Tensor) -> tuple[Drawn, Asked, Scratch]:
    """Every position is its own place and its own row."""
    size, device = len(logits_SV), logits_SV.device
    order_S = torch.arange(size, dtype=torch.int32, device=device)
    zeros_S = torch.zeros(size, device=device)
    drawn = Drawn(
        torch.empty_like(order_S),
        torch.empty(size, dtype=torch.uint8, device=device),
        torch.empty(size + 1, dtype=torch.int32, device=device),
    )
    asked = Asked(
        zeros_S, order_S, zeros_S, zeros_S, order_S.long(), order_S.long(), rows_S=order_S, places_S=order_S
    )
    return drawn, asked, Scratch(size, logits_SV.shape[1], device)
