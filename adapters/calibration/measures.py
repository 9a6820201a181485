"""Computes a calibration's measures from scores, per sample and in total: likelihoods, agreement, gain,
intervals.

All figures are per scored token, likelihoods in nats. Intervals are 95 % intervals from resampling whole
samples (Efron's percentile bootstrap) with a fixed seed, so that the same scores give the same report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from adapters.calibration.samples import Sample
from adapters.calibration.scores import Scores

RESAMPLES = 1000
LEVEL = 0.95
SEED = 20_261_121
BASE = "base"
"""The key, among the served dtypes, of the base without an adapter."""


class Estimate(msgspec.Struct, frozen=True):
    """A figure and its interval."""

    value: float
    low: float
    high: float


class Fidelity(msgspec.Struct, frozen=True):
    """One way of serving (a dtype of the adapter, or the base alone) against its reference."""

    nll: Estimate
    perplexity: float
    nll_rise: Estimate
    """Served minus reference, of the right tokens."""
    top1: Estimate
    """Share of tokens for which both have the same most likely token."""


class Gain(msgspec.Struct, frozen=True):
    """What the adapter gains as it is served: the base's likelihoods against its own."""

    nats: Estimate
    """The base's nats per token minus the adapter's: above 0 the adapter is better."""
    perplexity_base: float
    perplexity: float


class DtypeComparison(msgspec.Struct, frozen=True):
    """FP8 against bf16, both as served."""

    nll_rise: Estimate
    top1: Estimate


class ModuleError(msgspec.Struct, frozen=True):
    """One module of one layer: ratios of root mean squares, on the samples' activations."""

    layer: int
    module: str
    share: float
    """The adapter's output relative to that of the base's module."""
    errors: dict[str, float]
    """By stored dtype: the error of the adapter's output, relative to that output."""


class SampleMeasures(msgspec.Struct, frozen=True):
    """One sample; served figures by dtype, with `BASE` for the base alone."""

    line: int
    num_scored: int
    nll_reference: float
    """Nats per token, like all of these."""
    nll_reference_base: float
    nll: dict[str, float]
    top1: dict[str, float]


class Measures(msgspec.Struct, frozen=True):
    """All measures of a calibration."""

    num_samples: int
    num_tokens: int
    """Number of scored tokens."""
    nll_reference: Estimate
    nll_reference_base: Estimate
    reference_gain: Estimate
    """The adapter's gain without any quantising."""
    doubling_gain: Estimate | None
    """The additional gain at twice the adapter's scale; None where it was not measured."""
    fidelity: dict[str, Fidelity]
    gain: dict[str, Gain]
    comparison: DtypeComparison | None
    samples: list[SampleMeasures]


def measure(
    samples: Sequence[Sample],
    reference: Sequence[Scores],
    reference_base: Sequence[Scores],
    served: Mapping[str, Sequence[Scores]],
    doubled: Sequence[Scores] = (),
) -> Measures:
    """Computes the measures. `served` has `BASE` and at least one dtype of the adapter; `doubled` may be
    empty.
    """
    bootstrap = _Bootstrap([sample.num_scored for sample in samples])
    nll, nll_base = _nlls(reference), _nlls(reference_base)
    nlls = {name: _nlls(scores) for name, scores in served.items()}
    same = {
        name: _same(scores, reference_base if name == BASE else reference) for name, scores in served.items()
    }
    per_token = bootstrap.per_token
    fidelity = {
        name: Fidelity(
            nll=per_token(nlls[name]),
            perplexity=_perplexity(per_token(nlls[name]).value),
            nll_rise=per_token(nlls[name] - (nll_base if name == BASE else nll)),
            top1=per_token(same[name]),
        )
        for name in served
    }
    gain = {
        name: Gain(
            nats=per_token(nlls[BASE] - nlls[name]),
            perplexity_base=fidelity[BASE].perplexity,
            perplexity=fidelity[name].perplexity,
        )
        for name in served
        if name != BASE
    }
    return Measures(
        num_samples=len(samples),
        num_tokens=sum(sample.num_scored for sample in samples),
        nll_reference=per_token(nll),
        nll_reference_base=per_token(nll_base),
        reference_gain=per_token(nll_base - nll),
        doubling_gain=per_token(nll - _nlls(doubled)) if doubled else None,
        fidelity=fidelity,
        gain=gain,
        comparison=_comparison(served, nlls, per_token),
        samples=[
            SampleMeasures(
                sample.line,
                sample.num_scored,
                float(nll[place]) / sample.num_scored,
                float(nll_base[place]) / sample.num_scored,
                {name: float(values[place]) / sample.num_scored for name, values in nlls.items()},
                {name: float(values[place]) / sample.num_scored for name, values in same.items()},
            )
            for place, sample in enumerate(samples)
        ],
    )


def _comparison(
    served: Mapping[str, Sequence[Scores]],
    nlls: Mapping[str, np.ndarray],
    per_token: Callable[[np.ndarray], Estimate],
) -> DtypeComparison | None:
    if not {"bfloat16", "float8_e4m3"} <= served.keys():
        return None
    return DtypeComparison(
        nll_rise=per_token(nlls["float8_e4m3"] - nlls["bfloat16"]),
        top1=per_token(_same(served["float8_e4m3"], served["bfloat16"])),
    )


class _Bootstrap:
    """Draws of samples with replacement, the same for every figure."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = np.array(sizes, np.float64)
        rng = np.random.default_rng(SEED)
        self._draws = rng.integers(0, len(sizes), (RESAMPLES, len(sizes)))

    def per_token(self, sums: np.ndarray) -> Estimate:
        """Estimates a figure per scored token from a sum per sample."""
        value = float(sums.sum() / self._sizes.sum())
        if not math.isfinite(value):
            return Estimate(value, value, value)
        drawn = sums[self._draws].sum(1) / self._sizes[self._draws].sum(1)
        low, high = np.quantile(drawn, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        return Estimate(value, float(low), float(high))


def _nlls(scores: Sequence[Scores]) -> np.ndarray:
    """Returns each sample's negative log likelihood, summed over its tokens."""
    return np.array([score.nll for score in scores], np.float64)


def _same(scores: Sequence[Scores], others: Sequence[Scores]) -> np.ndarray:
    """Returns for each sample the number of tokens on whose most likely candidate both agree."""
    pairs = zip(scores, others, strict=True)
    return np.array(
        [sum(a == b for a, b in zip(one.likeliest, other.likeliest, strict=True)) for one, other in pairs],
        np.float64,
    )


def _perplexity(nll: float) -> float:
    """Returns the perplexity; infinite beyond the range of a float."""
    try:
        return math.exp(nll)
    except OverflowError:
        return math.inf
