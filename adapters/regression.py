"""Compares a version's calibration with that of the version it would replace."""

from __future__ import annotations

import math
from dataclasses import dataclass

from adapters.models import AdapterVersion

_LEAST_LOSS = 0.0005


@dataclass(frozen=True)
class Regression:
    """A version that measured worse than the active one."""

    version: int
    active_version: int
    loss: float
    """In nats per token: how much less it gains over the base model."""
    is_comparable: bool
    """Whether both were measured on samples of the same origin and number."""


def regression_of(version: AdapterVersion, active: AdapterVersion | None) -> Regression | None:
    """Returns None if there is no active version, one was not measured, or it measured no worse."""
    if active is None or active.version == version.version:
        return None
    new, old = version.calibration or {}, active.calibration or {}
    loss = _gain(old) - _gain(new)
    # Not a number if either is missing. What the page rounds to zero is no loss to ask about.
    if not loss >= _LEAST_LOSS:
        return None
    samples = [(one.get("samples"), one.get("num_samples")) for one in (new, old)]
    return Regression(version.version, active.version, loss, samples[0] == samples[1])


def _gain(calibration: dict[str, object]) -> float:
    gain = calibration.get("gain")
    return float(gain) if isinstance(gain, int | float) else math.nan
