"""Which codes and scales a float weight gets: rounding to nearest, the scale by search.

Owns the choice. Refuses to know how codes are stored.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 128
"""Inputs that share a scale."""
SYMMETRIC_ZERO = 8
"""The code of zero where there are no zero points."""
SHRINKS = tuple(1.0 - 0.04 * step for step in range(13))
"""Scales tried, as a share of the one that clips nothing. Normal weights are best near 0.85; below 0.52 no
group of 128 gained."""
CHUNK_BYTES = 1 << 28
"""fp32 bytes of weights looked at at once: a search over a whole gate_up would take gigabytes."""


def round_to_codes(weight_NK: Tensor, symmetric: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """(codes_NK uint8, scale_NG bf16, zero_NG or None): the least squared error, group by group.

    Semantics: code = clamp(round(W / scale) + zero, 0, 15)

    Without zero points the scale may be negative: codes reach 8 below zero and 7 above, and the side with
    the larger magnitude gets the eight.
    """
    if not torch.isfinite(weight_NK).all():
        raise ValueError("cannot quantise a weight that is not finite")
    num_inputs = weight_NK.shape[1]
    rows = max(CHUNK_BYTES // (4 * num_inputs), 1)
    codes, scales, zeros = [], [], []
    for chunk in weight_NK.split(rows):
        padded = torch.nn.functional.pad(chunk.float(), (0, -num_inputs % GROUP))
        wide = padded.view(len(chunk), -1, GROUP)
        scale, zero = _search(wide, symmetric)
        code = _encode(wide, scale[..., None], zero[..., None]).to(torch.uint8)
        codes.append(code.flatten(1)[:, :num_inputs])
        scales.append(scale.to(torch.bfloat16))
        zeros.append(zero)
    return torch.cat(codes), torch.cat(scales), None if symmetric else torch.cat(zeros).to(torch.uint8)


def _search(wide_NGI: Tensor, symmetric: bool) -> tuple[Tensor, Tensor]:
    best_scale = best_zero = best_error = None
    for full_scale, zero_of in _starts(wide_NGI, symmetric):
        for shrink in SHRINKS:
            scale = (full_scale * shrink).to(torch.bfloat16).float()  # as stored, so that the codes suit it
            zero = zero_of(scale)
            decoded = (_encode(wide_NGI, scale[..., None], zero[..., None]) - zero[..., None]) * scale[
                ..., None
            ]
            error = (decoded - wide_NGI).square_().sum(-1)
            if best_error is None:
                best_scale, best_zero, best_error = scale, zero, error
                continue
            better = error < best_error
            best_scale = torch.where(better, scale, best_scale)
            best_zero = torch.where(better, zero, best_zero)
            best_error = torch.where(better, error, best_error)
    assert best_scale is not None
    assert best_zero is not None
    return best_scale, best_zero


def _starts(wide_NGI: Tensor, symmetric: bool):  # type: ignore[no-untyped-def]
    """Scales that clip nothing, each with its zero points as a function of the scale that is tried."""
    smallest = torch.finfo(torch.bfloat16).tiny
    low, high = wide_NGI.amin(-1).clamp_max_(0), wide_NGI.amax(-1).clamp_min_(0)
    if not symmetric:
        # The range is low to low + 15 scale: what is clipped, both ends share.
        middle = (low + high) / 2
        yield (
            ((high - low) / 15).clamp_min_(smallest),
            lambda scale: torch.round(7.5 - middle / scale).clamp_(0, 15),
        )
        return
    eight = torch.full_like(low, SYMMETRIC_ZERO)
    largest = torch.maximum(high, -low).clamp_min_(smallest)
    yield largest / 7, lambda scale: eight
    yield torch.where(high > -low, -largest, largest) / 8, lambda scale: eight


def _encode(wide: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return torch.round(wide / scale).add_(zero).clamp_(0, 15)
