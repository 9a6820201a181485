"""Sums what GPUs of one host computed, each reading the others' memory, and norms the sum.

Semantics: residual[t] += sum_r part_r[t] * scale_r[t];
    out[t] = residual[t] / sqrt(mean(residual[t]^2) + eps) * weight;
    quantized[t] = out[t] / s[t], s[t] = max |out[t]| / 448

All ranks add in the same order, so that the residual is the same bits on all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Addresses = tuple[int, ...]
"""Where the ranks have memory of the same shape, by rank."""

MAX_PROGRAMS = 128
"""Of a kernel that meets other ranks': fewer than multiprocessors, so that all run at the same time."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where one rank's kernels meet those of the others. All ranks launch the same ones in the same order."""

    rank: int
    signals: Addresses
    """Of each rank's signals, int32 [MAX_PROGRAMS, R] and 0 at first."""
    counts: Tensor
    """int32 [MAX_PROGRAMS], 0 at first: how often this rank's programs have met the others'."""


@dataclass(frozen=True, slots=True)
class PeerSlots:
    """Memory for what each rank has, on all ranks: one slot for each."""

    memory: Tensor
    """This rank's own."""
    copies: Addresses
    """This rank's slot in the other ranks' memory."""
    received: Addresses
    """By rank: its slot in this rank's memory."""
    own: Addresses
    """By rank: its slot in its own memory."""


def meet(meeting: Meeting) -> None:
    """Queues a wait until all ranks have come here: what they queued before is then done, and seen by all."""
    from kernels.peer_sum.kernel import meet_triton

    meet_triton(meeting)


def sum_norm(
    parts: Addresses,
    scales: Addresses | None,
    meeting: Meeting | None,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor | None,
    quantized: Tensor | None = None,
    quantized_scale_T: Tensor | None = None,
    num_parts: int | None = None,
) -> None:
    """Semantics: see the module. Only on GPUs, where the ranks meet first, and interpreted.

    A rank may write its part again once all have met again.

    Args:
        parts: of each rank's part, of the residual's type, `[T, H]`; multiples of 16.
        scales: of what the rows of each part were divided by, fp32 `[T]`. None where they were not.
        meeting: None where all parts are written already.
        residual: `[T, H]`, updated in place.
        weight: `[H]`.
        out, quantized, quantized_scale_T: as in `kernels.rms_norm`.
        num_parts: each rank's part is the sum of so many, fp32 `[num_parts, T, H]`.

    Source: the one-shot sum of vLLM's and TensorRT-LLM's custom all-reduce kernels, with the norm behind it.
    """
    _check(residual, weight, out, quantized, quantized_scale_T)
    from kernels.peer_sum.kernel import sum_norm_triton

    sum_norm_triton(
        parts,
        scales,
        meeting,
        residual,
        weight,
        eps,
        out,
        quantized,
        quantized_scale_T,
        num_parts,
    )


def sum_parts(parts: Addresses, meeting: Meeting | None, out: Tensor) -> None:
    """Semantics: out = sum_r part_r, in the order of the ranks.

    Args:
        parts: of each rank's part, as large as `out` and fp32; multiples of 16.
        meeting: as in `sum_norm`.
        out: fp32, contiguous.
    """
    if out.dtype != torch.float32 or not out.is_contiguous():
        raise ValueError(f"sum_parts: out {tuple(out.shape)} {out.dtype}: contiguous fp32")
    from kernels.peer_sum.kernel import sum_parts_triton

    sum_parts_triton(parts, meeting, out)


def _check(
    residual: Tensor,
    weight: Tensor,
    out: Tensor | None,
    quantized: Tensor | None,
    quantized_scale_T: Tensor | None,
) -> None:
    if residual.dim() != 2 or weight.shape != residual.shape[1:] or not residual.is_contiguous():
        raise ValueError(f"sum_norm: residual {tuple(residual.shape)}, weight {tuple(weight.shape)}")
    if out is None and quantized is None:
        raise ValueError("sum_norm: neither out nor quantized is asked for")
    if (quantized is None) != (quantized_scale_T is None):
        raise ValueError("sum_norm: quantized and quantized_scale_T go together")
    for name, rows in (("out", out), ("quantized", quantized)):
        if rows is not None and (rows.shape != residual.shape or not rows.is_contiguous()):
            raise ValueError(
                f"sum_norm: {name} {tuple(rows.shape)} is not like residual {tuple(residual.shape)}"
            )
