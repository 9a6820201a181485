"""Chooses codes and scales for a float weight: rounding to nearest, the scale by search."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

GROUP = 128
"""Inputs that share a scale."""
SYMMETRIC_ZERO = 8
"""The code of zero where there are no zero points."""
SHRINKS = tuple(1.0 - 0.04 * step for step in range(13))
"""Candidate scales, as a share of the one that clips nothing. Normal weights are best near 0.85; below 0.52
no group of 128 gained."""
CHUNK_BYTES = 1 << 28
"""fp32 bytes of weights looked at at once: a search over a whole gate_up would take gigabytes."""


def round_to_codes(
    weight_NK: Tensor, symmetric: bool, balanced: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(codes_NK uint8, scale_NG bf16, zero_NG or None): the least squared error, group by group.

    Semantics: code = clamp(round(W / scale) + zero, 0, 15)

    Args:
        symmetric: without zero points. The scale may be negative then: codes reach 8 below zero and 7 above,
            and the side with the larger magnitude gets the eight.
        balanced: symmetric, and codes reach 7 to both sides.
    """
    if not torch.isfinite(weight_NK).all():
        raise ValueError("cannot quantise a weight that is not finite")
    num_inputs = weight_NK.shape[1]
    lowest = 1 if balanced else 0
    codes, scales, zeros = [], [], []
    for chunk in weight_NK.split(max(CHUNK_BYTES // (4 * num_inputs), 1)):
        padded = torch.nn.functional.pad(chunk.float(), (0, -num_inputs % GROUP))
        wide_NGI = padded.view(len(chunk), -1, GROUP)
        scale_NG, zero_NG = _search(wide_NGI, symmetric, lowest)
        code = _encode(wide_NGI, scale_NG, zero_NG, lowest).to(torch.uint8)
        codes.append(code.flatten(1)[:, :num_inputs])
        scales.append(scale_NG.to(torch.bfloat16))
        zeros.append(zero_NG)
    return torch.cat(codes), torch.cat(scales), None if symmetric else torch.cat(zeros).to(torch.uint8)


def _search(wide_NGI: Tensor, symmetric: bool, lowest: int) -> tuple[Tensor, Tensor]:
    best_scale = best_zero = None
    best_error = torch.full(wide_NGI.shape[:-1], torch.inf, device=wide_NGI.device)
    for scale_NG, zero_NG in _candidates(wide_NGI, symmetric, lowest):
        codes = _encode(wide_NGI, scale_NG, zero_NG, lowest)
        decoded = (codes - zero_NG[..., None]) * scale_NG[..., None]
        error = (decoded - wide_NGI).square_().sum(-1)
        if best_scale is None or best_zero is None:
            best_scale, best_zero, best_error = scale_NG, zero_NG, error
            continue
        better = error < best_error
        best_scale = torch.where(better, scale_NG, best_scale)
        best_zero = torch.where(better, zero_NG, best_zero)
        best_error = torch.where(better, error, best_error)
    assert best_scale is not None
    assert best_zero is not None
    return best_scale, best_zero


def _candidates(wide_NGI: Tensor, symmetric: bool, lowest: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Scales, as they will be stored, with their zero points."""
    low, high = wide_NGI.amin(-1).clamp_max_(0), wide_NGI.amax(-1).clamp_min_(0)
    largest = torch.maximum(high, -low)
    middle = torch.full_like(low, SYMMETRIC_ZERO)
    starts = [(high - low) / 15]
    if symmetric:
        starts = [largest / 7]
        if lowest == 0:
            starts.append(torch.where(high > -low, -largest, largest) / 8)
    for start in starts:
        for shrink in SHRINKS:
            scale = (start * shrink).to(torch.bfloat16).float()
            # A group of zeros; it has any scale.
            scale = torch.where(scale == 0, torch.finfo(torch.bfloat16).tiny, scale)
            # Where the range is clipped, both ends share it.
            zero = middle if symmetric else torch.round(7.5 - (low + high) / 2 / scale).clamp_(0, 15)
            yield scale, zero


def _encode(wide_NGI: Tensor, scale_NG: Tensor, zero_NG: Tensor, lowest: int) -> Tensor:
    return torch.round(wide_NGI / scale_NG[..., None]).add_(zero_NG[..., None]).clamp_(lowest, 15)
