"""Samples in torch: the definition of the op, and what CPU engines run. Works on any device.

Suffixes: S rows, V vocabulary, R those of the rows that need a step. Every result of a row depends on that
row's inputs alone, bit for bit: no reduction and no choice of path crosses rows.
"""

from __future__ import annotations

import numpy as np
import torch

from kernels.sampling.step import Drawn, SamplingInputs, TokenMasks

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift: torch has signed 64-bit integers only."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _splitmix64(x: torch.Tensor) -> torch.Tensor:
    """The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom generators, 2014)."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def uniform(seeds_S: torch.Tensor, positions_S: torch.Tensor) -> torch.Tensor:
    """Semantics: u[s] = (top 52 bits of mix(mix(seed + g) + (position + 1) g) + 0.5) / 2^52, in (0, 1).

    Both int64 (a seed's 64 bits, position >= 0); float64 comes back. The seed is mixed first, so that seeds
    1, 2, 3... are no shifted copies of one stream.
    """
    stream = _splitmix64(seeds_S + _GOLDEN)
    bits = _splitmix64(stream + (positions_S + 1) * _GOLDEN)
    # 52 bits and a half fill the 53 of a double; one bit more and the largest value would round to 1.
    return (_shift_right(bits, 12).double() + 0.5) * 2.0**-52


def greedy(logits_SV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Semantics: ids[s] = argmax_v logits[s, v] (the lowest v of equals); finite[s] = isfinite(max_v ...).

    A NaN is larger than everything, so that `finite` is false for rows with any NaN or +inf, or with nothing
    but -inf.
    """
    if logits_SV.device.type == "cpu":
        # numpy's argmax is vectorised: ten times as fast as torch's on a CPU.
        ids_S = torch.from_numpy(logits_SV.numpy().argmax(axis=-1))
    else:
        ids_S = logits_SV.argmax(dim=-1)
    return ids_S, torch.isfinite(logits_SV.gather(-1, ids_S[:, None]).squeeze(-1))


def penalize(
    logits_SV: torch.Tensor,
    counts_SV: torch.Tensor,
    in_prompt_SV: torch.Tensor,
    presence_S: torch.Tensor,
    frequency_S: torch.Tensor,
    repetition_S: torch.Tensor,
) -> torch.Tensor:
    """Semantics: l = logits[s, v]; if seen: l = l / r if l > 0 else l * r; out = l - f * count - p * (count >
    0).

    `counts` are occurrences in the output, `seen` is in the prompt or the output. Repetition as in CTRL
    (arXiv 1909.05858), presence and frequency as OpenAI documents them.
    """
    occurs_SV = counts_SV > 0
    r_S1 = repetition_S[:, None]
    repeated_SV = torch.where(logits_SV > 0, logits_SV / r_S1, logits_SV * r_S1)
    out_SV = torch.where(occurs_SV | in_prompt_SV, repeated_SV, logits_SV)
    return out_SV - frequency_S[:, None] * counts_SV - presence_S[:, None] * occurs_SV


def draw(
    logits_SV: torch.Tensor,
    temperature_S: torch.Tensor,
    top_k_S: torch.Tensor,
    top_p_S: torch.Tensor,
    min_p_S: torch.Tensor,
    uniform_S: torch.Tensor,
) -> torch.Tensor:
    """Semantics: ids[s] = min { v : sum_{w <= v} e[s, w] > u[s] * sum_w e[s, w] }.

    With z = (logits - max) / temperature and e = exp(z) where kept, else 0. Kept is what passes, in this
    order: top-k (logits not below the k-th largest), top-p (logits not below the last of the fewest largest
    that hold a share p of what top-k kept), min-p (exp(z) not below m: the largest is 1). Equal logits stay
    or go together, so that the kept set has one meaning on any device; the sum runs in vocabulary order, so
    that two near-equal logits changing places moves nothing.

    temperature > 0; top_k int64, outside 1..V is off; top_p 1 is off; min_p 0 is off. Returns int64.
    """
    z_SV = (logits_SV - logits_SV.amax(dim=-1, keepdim=True)) / temperature_S[:, None]
    weights_SV = torch.exp(z_SV)
    size = logits_SV.shape[-1]
    k_S = torch.where((top_k_S < 1) | (top_k_S > size), size, top_k_S)
    truncated_S = (k_S < size) | (top_p_S < 1)
    if bool(truncated_S.any()):
        rows_R = truncated_S.nonzero().squeeze(-1)
        logits_RV = logits_SV[rows_R]
        threshold_R = _threshold(logits_RV, temperature_S[rows_R], k_S[rows_R], top_p_S[rows_R])
        weights_SV[rows_R] = weights_SV[rows_R].masked_fill(logits_RV < threshold_R[:, None], 0.0)
    if bool((min_p_S > 0).any()):
        weights_SV = weights_SV.masked_fill(weights_SV < min_p_S[:, None], 0.0)
    cumulative_SV = weights_SV.cumsum(dim=-1, dtype=torch.float64)
    total_S1 = cumulative_SV[:, -1:].contiguous()
    ids_S1 = torch.searchsorted(cumulative_SV, uniform_S[:, None] * total_S1, right=True)
    # Where the product rounded up to the total: the last token kept.
    last_S1 = torch.searchsorted(cumulative_SV, total_S1)
    return torch.minimum(ids_S1, last_S1).squeeze(-1)


def _threshold(
    logits_SV: torch.Tensor, temperature_S: torch.Tensor, k_S: torch.Tensor, top_p_S: torch.Tensor
) -> torch.Tensor:
    """The smallest logit that top-k (1..V) and top-p keep."""
    sorted_SV = _descending(logits_SV)
    kth_S = sorted_SV.gather(-1, (k_S - 1)[:, None]).squeeze(-1)
    z_SV = (sorted_SV - sorted_SV[:, :1]) / temperature_S[:, None]
    share_SV = torch.exp(z_SV).masked_fill(sorted_SV < kth_S[:, None], 0.0).double()
    cumulative_SV = share_SV.cumsum(dim=-1)
    wanted_S1 = top_p_S.double()[:, None] * cumulative_SV[:, -1:]
    # One that begins below the wanted mass is still needed; the first always is.
    num_kept_S = ((cumulative_SV - share_SV) < wanted_S1).sum(dim=-1).clamp(min=1)
    nucleus_S = sorted_SV.gather(-1, (num_kept_S - 1)[:, None]).squeeze(-1)
    # Off means off: rounding in the sum must not cut the tail.
    return torch.maximum(kth_S, torch.where(top_p_S < 1, nucleus_S, kth_S))


def _descending(logits_SV: torch.Tensor) -> torch.Tensor:
    """Sorted values. On a CPU by numpy, whose vectorised sort of values is 15 times as fast as torch's."""
    if logits_SV.device.type == "cpu":
        return torch.from_numpy(-np.sort(-logits_SV.numpy(), axis=-1))
    return logits_SV.sort(dim=-1, descending=True).values


def allow(logits_SV: torch.Tensor, masks: TokenMasks) -> torch.Tensor:
    """Semantics: out[s, v] = logits[s, v] where s has no mask or its bit v is set, else -inf.

    NaN and +inf stay, whatever the mask says: such a row has failed. A new tensor if any s has a mask.
    """
    masks_S = masks.masks_S[: len(logits_SV)].long()
    rows_R = (masks_S >= 0).nonzero().squeeze(-1)
    if not len(rows_R):
        return logits_SV
    allowed_RV = unpack(masks.bits_MW[masks_S[rows_R]], logits_SV.shape[1])
    logits_RV = logits_SV[rows_R]
    cut_RV = ~allowed_RV & (logits_RV < torch.inf)
    return logits_SV.index_copy(0, rows_R, logits_RV.masked_fill(cut_RV, -torch.inf))


def unpack(bits_RW: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Semantics: out[r, v] = bit v % 32 of bits[r, v // 32]; bool [R, V] of int32."""
    shifts = torch.arange(32, dtype=torch.int32, device=bits_RW.device)
    return ((bits_RW[:, :, None] >> shifts) & 1).flatten(1)[:, :vocab_size].bool()


def sample_reference(
    logits_SV: torch.Tensor, parameters: SamplingInputs, drawn: Drawn, masks: TokenMasks | None = None
) -> None:
    """Semantics: ids[places[s]] = next_ids[rows[s]] for every position s whose row is not the null row:
    `greedy` where temperature is 0, else `draw` at `uniform(seed, position)`, of the logits that `allow`
    keeps. A row that is not finite gets finite[places[s]] = 0 and id 0.
    """
    if masks is not None:
        logits_SV = allow(logits_SV, masks)
    rows_S = parameters.rows_S[: len(logits_SV)]
    active_A = (rows_S != len(drawn.next_ids_R) - 1).nonzero().squeeze(-1)
    logits_AV = logits_SV[active_A].float()
    ids_A, finite_A = greedy(logits_AV)
    ids_A = torch.where(finite_A, ids_A, 0)
    random_D = ((parameters.temperature_S[active_A] > 0) & finite_A).nonzero().squeeze(-1)
    if len(random_D):
        at_D = active_A[random_D]
        ids_A[random_D] = draw(
            logits_AV[random_D],
            parameters.temperature_S[at_D],
            parameters.top_k_S[at_D].long(),
            parameters.top_p_S[at_D],
            parameters.min_p_S[at_D],
            uniform(parameters.seeds_S[at_D], parameters.positions_S[at_D]),
        )
    places_A = parameters.places_S[active_A].long()
    drawn.ids_S[places_A] = ids_A.to(drawn.ids_S.dtype)
    drawn.finite_S[places_A] = finite_A.to(drawn.finite_S.dtype)
    drawn.next_ids_R[rows_S[active_A].long()] = ids_A.to(drawn.next_ids_R.dtype)


def logprobs(
    logits_SV: torch.Tensor, ids_S: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Semantics: lp = log_softmax(logits[s]); (lp[ids[s]], the `num_top` largest lp in falling order, their
    ids)."""
    logprobs_SV = torch.log_softmax(logits_SV, dim=-1)
    chosen_S = logprobs_SV.gather(-1, ids_S[:, None]).squeeze(-1)
    top = logprobs_SV.topk(num_top, dim=-1)
    return chosen_S, top.values, top.indices
