"""Draws tokens from logits: truncation, penalties, a counter-based uniform, and log-probabilities.

Checks arguments and chooses the implementation: Triton on a GPU, the torch reference on a CPU; penalties and
log-probabilities are torch everywhere. A row's parameters arrive as numbers.
"""

from __future__ import annotations

import torch

from kernels.backend import uses_triton
from kernels.sampling import reference
from kernels.sampling.step import NO_MASK, Drawn, SamplingInputs, Scratch, TokenMasks

__all__ = [
    "NO_MASK",
    "Drawn",
    "SamplingInputs",
    "Scratch",
    "TokenMasks",
    "allow",
    "draw",
    "greedy",
    "logprobs",
    "penalize",
    "sample",
    "uniform",
]


def sample(
    logits_SV: torch.Tensor,
    parameters: SamplingInputs,
    drawn: Drawn,
    scratch: Scratch,
    *,
    masks: TokenMasks | None = None,
    draws: bool = True,
    truncates: bool = True,
) -> None:
    """One id per position, on the device and without waiting for it: see `reference.sample_reference`.

    Args:
        logits_SV: fp32 or bf16; rows may be strided.
        parameters: by position, S of them at least; read when the kernels run, so a captured graph may call
            this.
        scratch: for S positions at least of this vocabulary; one step at a time.
        masks: what positions with a mask may draw; read when the kernels run. A position whose mask allows
            nothing has failed.
        draws: False promises that no position has a temperature: one kernel.
        truncates: False promises that none has top-k or top-p.
    """
    if logits_SV.dim() != 2 or logits_SV.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(
            f"logits: [S, V] fp32 or bf16 expected, got {list(logits_SV.shape)} {logits_SV.dtype}"
        )
    num_positions, vocab_size = logits_SV.shape
    if logits_SV.stride(1) != 1:
        raise ValueError("logits: the elements of a row side by side expected")
    if num_positions > scratch.max_positions or vocab_size != scratch.vocab_size:
        raise ValueError(f"scratch: for {num_positions} positions of {vocab_size} expected")
    if len(parameters.rows_S) < num_positions:
        raise ValueError(f"parameters: {num_positions} positions expected, got {len(parameters.rows_S)}")
    if masks is not None:
        _check_masks(masks, num_positions, vocab_size)
    if uses_triton(logits_SV):
        from kernels.sampling.launch import launch

        launch(logits_SV, parameters, drawn, scratch, masks=masks, draws=draws, truncates=truncates)
    else:
        reference.sample_reference(logits_SV, parameters, drawn, masks)


def _check_masks(masks: TokenMasks, num_positions: int, vocab_size: int) -> None:
    if len(masks.masks_S) < num_positions:
        raise ValueError(f"masks: {num_positions} positions expected, got {len(masks.masks_S)}")
    bits_MW = masks.bits_MW
    words = -(-vocab_size // 32)
    if bits_MW.dtype is not torch.int32 or bits_MW.dim() != 2 or bits_MW.shape[1] < words:
        raise ValueError(
            f"masks: int32 [M, {words}] at least expected, got {bits_MW.dtype} {list(bits_MW.shape)}"
        )
    if bits_MW.stride(1) != 1:
        raise ValueError("masks: the words of a mask side by side expected")


def _check_rows(logits_SV: torch.Tensor, **rows: torch.Tensor) -> None:
    if logits_SV.dim() != 2 or logits_SV.dtype is not torch.float32:
        raise ValueError(f"logits: [S, V] fp32 expected, got {list(logits_SV.shape)} {logits_SV.dtype}")
    for name, row_S in rows.items():
        if row_S.shape != logits_SV.shape[:1]:
            raise ValueError(f"{name}: [{logits_SV.shape[0]}] expected, got {list(row_S.shape)}")


def uniform(seeds_S: torch.Tensor, positions_S: torch.Tensor) -> torch.Tensor:
    """One number in (0, 1) per (seed, output position), float64: see `reference.uniform`. Both int64 [S]."""
    for name, tensor_S in (("seeds", seeds_S), ("positions", positions_S)):
        if tensor_S.dtype is not torch.int64:
            raise ValueError(f"{name}: int64 expected, got {tensor_S.dtype}")
    if uses_triton(seeds_S):
        from kernels.sampling import launch

        return launch.uniform(seeds_S, positions_S)
    return reference.uniform(seeds_S, positions_S)


def allow(logits_SV: torch.Tensor, masks: TokenMasks) -> torch.Tensor:
    """Logits with -inf where a position's mask forbids a token: see `reference.allow`."""
    _check_masks(masks, *logits_SV.shape)
    return reference.allow(logits_SV, masks)


def greedy(logits_SV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids int64 [S], finite bool [S]): see `reference.greedy`."""
    _check_rows(logits_SV)
    if uses_triton(logits_SV):
        from kernels.sampling import launch

        return launch.greedy(logits_SV)
    return reference.greedy(logits_SV)


def penalize(
    logits_SV: torch.Tensor,
    counts_SV: torch.Tensor,
    in_prompt_SV: torch.Tensor,
    presence_S: torch.Tensor,
    frequency_S: torch.Tensor,
    repetition_S: torch.Tensor,
) -> torch.Tensor:
    """Logits after presence, frequency and repetition penalties, a new tensor: see `reference.penalize`."""
    _check_rows(logits_SV, presence=presence_S, frequency=frequency_S, repetition=repetition_S)
    if counts_SV.shape != logits_SV.shape or in_prompt_SV.shape != logits_SV.shape:
        raise ValueError("counts and in_prompt: the shape of logits expected")
    return reference.penalize(logits_SV, counts_SV, in_prompt_SV, presence_S, frequency_S, repetition_S)


def draw(
    logits_SV: torch.Tensor,
    temperature_S: torch.Tensor,
    top_k_S: torch.Tensor,
    top_p_S: torch.Tensor,
    min_p_S: torch.Tensor,
    uniform_S: torch.Tensor,
) -> torch.Tensor:
    """One id per row from the truncated distribution, int64 [S]: see `reference.draw`."""
    _check_rows(
        logits_SV, temperature=temperature_S, top_k=top_k_S, top_p=top_p_S, min_p=min_p_S, uniform=uniform_S
    )
    if uses_triton(logits_SV):
        from kernels.sampling import launch

        return launch.draw(logits_SV, temperature_S, top_k_S, top_p_S, min_p_S, uniform_S)
    return reference.draw(logits_SV, temperature_S, top_k_S, top_p_S, min_p_S, uniform_S)


def logprobs(
    logits_SV: torch.Tensor, ids_S: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(chosen [S], top [S, num_top], top ids [S, num_top]): see `reference.logprobs`."""
    _check_rows(logits_SV, ids=ids_S)
    if not 0 <= num_top <= logits_SV.shape[1]:
        raise ValueError(f"num_top: {num_top} is not between 0 and the vocabulary's {logits_SV.shape[1]}")
    return reference.logprobs(logits_SV, ids_S, num_top)
