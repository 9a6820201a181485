"""Decides from a calibration's measures whether an adapter is ready, and in which dtype it serves.

Each rule compares a measure with a threshold and explains the result to the tenant. An operator may override
a failure, with a reason.

On the tenant's own samples the adapter must be better than the base alone, beyond chance: that detects
weights in the wrong place, a wrong scale, an adapter of another base. A default set does not show what the
adapter is for, so there only a breakdown of the model fails, and poor agreement with the reference, which any
text shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from adapters.calibration.measures import Estimate, Measures
from adapters.calibration.samples import Origin

StoredDtype = Literal["bfloat16", "float8_e4m3"]
SMALL: StoredDtype = "float8_e4m3"
EXACT: StoredDtype = "bfloat16"
_NAMES = {SMALL: "FP8", EXACT: "bf16"}
UNSURE_NLL = 1.0
"""Nats per right token from which an adapter does not know the samples: it cannot have been trained on texts
whose tokens it gives a probability of a third.
"""


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Thresholds. Likelihoods are in nats per scored token."""

    min_gain: float = 0.0
    """On the tenant's samples: minimum gain over the base alone, at the low end of the interval."""
    max_doubling_gain: float = 0.1
    """On the tenant's samples: maximum gain at twice the adapter's scale, at the low end of the interval. An
    adapter with the alpha, rank and rsLoRA setting of its training gains nothing there.
    """
    max_loss: float = 4.0
    """On a default set: maximum loss against the base alone."""
    max_nll_rise: float = 0.1
    """On the tenant's samples: maximum likelihood of the right tokens that quantizing may cost."""
    max_nll_rise_default: float = 0.5
    """The same on a default set, which an adapter was not trained on."""
    min_top1: float = 0.95
    """On the tenant's samples: share of tokens on which serving and reference must agree."""
    min_top1_default: float = 0.75
    """The same on a default set, where many tokens are nearly tied."""
    fp8_max_nll_rise: float = 0.02
    """Maximum likelihood that FP8 may cost against bf16 to be chosen; on a default set, whose tokens are not
    the adapter's own and vary widely, at the low end of the interval.
    """
    fp8_max_top1_loss: float = 0.02
    """Maximum loss of agreement with the reference that FP8 may cost against bf16."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number")
            if name.startswith("min_top1") and not 0 <= value <= 1:
                raise ValueError(f"{name} must be between 0 and 1, not {value}")

    @classmethod
    def of_plan(cls, thresholds: Mapping[str, Any]) -> Gate:
        """Returns the defaults, overridden by a plan's thresholds. Raises ValueError naming the field."""
        try:
            return msgspec.convert(dict(thresholds), cls)
        except (msgspec.ValidationError, ValueError) as error:
            raise ValueError(f"gate: {error}") from None


class Rule(msgspec.Struct, frozen=True):
    """One threshold and the measure compared with it."""

    name: str
    passed: bool
    measured: float
    bound: float
    message: str
    """Explanation for the tenant."""


class Decision(msgspec.Struct, frozen=True):
    """The outcome of a calibration."""

    ready: bool
    dtype: StoredDtype
    """The dtype to serve; for a failed adapter, the one it was judged in."""
    dtype_reason: str
    rules: list[Rule]

    @property
    def why_not(self) -> list[str]:
        """Returns the messages of the rules that failed; empty when ready."""
        return [rule.message for rule in self.rules if not rule.passed]


def decide(
    gate: Gate, measures: Measures, origin: Origin, forced_dtype: StoredDtype | None = None
) -> Decision:
    """Chooses a dtype and judges the adapter as it would be served in it.

    Args:
        forced_dtype: the tenant's own choice, which must be among those measured.
    """
    own = origin == "tenant"
    dtype, reason = _choose(gate, measures, own, forced_dtype)
    rules = [
        _likely_enough(gate, measures, dtype, own),
        _fidelity_of_likelihood(gate, measures, dtype, own),
        _agreement(gate, measures, dtype, own),
    ]
    if measures.doubling_gain is not None:
        rules.append(_scale(gate, measures.doubling_gain))
    return Decision(all(rule.passed for rule in rules), dtype, reason, rules)


def _choose(gate: Gate, measures: Measures, own: bool, forced: StoredDtype | None) -> tuple[StoredDtype, str]:
    if forced is not None:
        return forced, f"{_NAMES[forced]}, as requested"
    if measures.comparison is None:
        only: StoredDtype = EXACT if EXACT in measures.gain else SMALL
        return only, f"{_NAMES[only]}, the only one available"
    rise = measures.comparison.nll_rise
    loss = measures.fidelity[EXACT].top1.value - measures.fidelity[SMALL].top1.value
    figures = (
        f"{rise.value:+.4f} nats per token {_interval(rise)} and {-loss:+.2%} of agreement with the "
        "reference beside bf16"
    )
    # NaN satisfies no bound.
    if (rise.value if own else rise.low) <= gate.fp8_max_nll_rise and loss <= gate.fp8_max_top1_loss:
        return SMALL, f"FP8, half the bytes: {figures}"
    bounds = f"{gate.fp8_max_nll_rise:g} nats and {gate.fp8_max_top1_loss:.2%} are allowed"
    return EXACT, f"bf16, because FP8 is too far off: {figures}; {bounds}"


def _likely_enough(gate: Gate, measures: Measures, dtype: str, own: bool) -> Rule:
    gain = measures.gain[dtype].nats
    better = "better" if gain.value >= 0 else "worse"
    shown = f"{abs(gain.value):.3f} nats per token {better} than the base alone {_interval(gain)}"
    if own:
        passed = gain.low >= gate.min_gain
        message = f"On your samples the adapter is {shown}."
        if not passed:
            chance = ", which may be chance" if gain.value >= gate.min_gain else ""
            message = (
                f"On your samples the adapter is {shown}{chance}; at the low end it must be at least "
                f"{gate.min_gain:g} better. Is it for this base, with the alpha, rank and rsLoRA setting it "
                "was trained with, and are these samples of its task?"
            )
        return Rule("gain", passed, gain.low, gate.min_gain, message)
    passed = gain.value >= -gate.max_loss
    chance = ", which may be chance" if gain.low <= 0 <= gain.high else ""
    message = f"On the default samples the adapter is {shown}{chance}."
    if not passed:
        message = (
            f"On the default samples the adapter is {shown}, more than {gate.max_loss:g}: it breaks the "
            "model. Check alpha, rank and the rsLoRA setting, or give samples of its own task."
        )
    return Rule("gain", passed, gain.value, -gate.max_loss, message)


def _scale(gate: Gate, doubling: Estimate) -> Rule:
    passed = not doubling.low > gate.max_doubling_gain
    better = "better" if doubling.value >= 0 else "worse"
    message = (
        f"At twice its scale the adapter would be {abs(doubling.value):.3f} nats per token {better} "
        f"{_interval(doubling)}"
    )
    if passed:
        message += "."
    else:
        message += (
            f", more than {gate.max_doubling_gain:g}: its scale is too small. Are lora_alpha, r and "
            "use_rslora those it was trained with?"
        )
    return Rule("scale", passed, doubling.low, gate.max_doubling_gain, message)


def _fidelity_of_likelihood(gate: Gate, measures: Measures, dtype: str, own: bool) -> Rule:
    rise, bound = measures.fidelity[dtype].nll_rise, gate.max_nll_rise if own else gate.max_nll_rise_default
    passed = rise.value <= bound
    message = (
        f"Served on the quantized base, the right tokens cost {rise.value:+.4f} nats more than on the "
        f"unquantized one {_interval(rise)}"
    )
    message += "." if passed else f"; at most {bound:g} are allowed."
    return Rule("nll_rise", passed, rise.value, bound, message)


def _agreement(gate: Gate, measures: Measures, dtype: str, own: bool) -> Rule:
    top1, bound = measures.fidelity[dtype].top1, gate.min_top1 if own else gate.min_top1_default
    passed = top1.value >= bound
    message = (
        "Served on the quantized base, the likeliest token is that of the unquantized one at "
        f"{top1.value:.2%} of the positions [{top1.low:.2%} to {top1.high:.2%}]"
    )
    message += "." if passed else f"; at least {bound:.2%} are required."
    unsure = measures.nll_reference.value
    if not passed and own and unsure > UNSURE_NLL:
        message += (
            f" Unquantized, too, the adapter is {unsure:.2f} nats per token off your samples, and tokens "
            "that are nearly a draw fall either way. Are they in the form it was trained on: prompt and "
            "completion as plain text, or messages in the base's chat template?"
        )
    return Rule("top1", passed, top1.value, bound, message)


def _interval(estimate: Estimate) -> str:
    return f"[{estimate.low:+.4f} to {estimate.high:+.4f}]"
