"""Draws a calibration report's charts: layer by layer, and sample by sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from adapters.calibration.measures import BASE, ModuleError, SampleMeasures
from engine.lora.manifest import GROUPS
from telemetry.svg import Axis, Series, line_chart

NAMES = {"bfloat16": "bf16", "float8_e4m3": "FP8", "float32": "fp32", BASE: "base alone"}
_MODULES = [name for names in GROUPS.values() for name in names]


def charts(samples: Sequence[SampleMeasures], modules: Sequence[ModuleError], dtype: str) -> dict[str, str]:
    """Returns charts by name, as SVG, without those that have no data."""
    stored = sorted({name for module in modules for name in module.errors})
    found = {
        "layer-share": _by_layer(
            "The adapter's output relative to the base's", modules, lambda module: module.share
        ),
        **{
            f"layer-error-{name}": _by_layer(
                f"Its error when stored in {NAMES[name]}",
                modules,
                lambda module, name=name: module.errors[name],  # type: ignore[misc]
            )
            for name in stored
        },
        "sample-nll": _likelihoods(samples, dtype),
        "sample-rise": _rises(samples, dtype),
    }
    return {name: chart for name, chart in found.items() if chart is not None}


def _by_layer(
    title: str, modules: Sequence[ModuleError], value: Callable[[ModuleError], float]
) -> str | None:
    """Draws a line per module, over the layers that have it."""
    series = []
    for name in _MODULES:
        points = [(float(module.layer), value(module)) for module in modules if module.module == name]
        points = [point for point in points if math.isfinite(point[1])]
        if points:
            series.append(Series(name.removesuffix("_proj"), sorted(points)))
    if not any(y for one in series for _, y in one.points):
        return None
    return line_chart(title, Axis("layer", whole=True), Axis("ratio of root mean squares"), series)


def _likelihoods(samples: Sequence[SampleMeasures], dtype: str) -> str | None:
    """Draws every sample, the worst last: the base alone, the reference, and as it is served."""
    ordered = sorted(samples, key=lambda sample: _finite(sample.nll[dtype]))
    series = [
        Series("base alone", _points(ordered, lambda sample: sample.nll[BASE]), line=False),
        Series("unquantized, with the adapter", _points(ordered, lambda one: one.nll_reference), line=False),
        Series(f"served, {NAMES[dtype]}", _points(ordered, lambda sample: sample.nll[dtype]), line=False),
    ]
    return _over_samples("Nats per token of the right answer, sample by sample", "least likely", series)


def _rises(samples: Sequence[SampleMeasures], dtype: str) -> str | None:
    def rise(sample: SampleMeasures) -> float:
        return sample.nll[dtype] - sample.nll_reference

    ordered = sorted(samples, key=lambda sample: _finite(rise(sample)))
    series = [Series(f"served, {NAMES[dtype]}", _points(ordered, rise))]
    return _over_samples("Cost of quantizing, sample by sample", "most costly", series)


def _over_samples(title: str, last: str, series: Sequence[Series]) -> str | None:
    if not any(one.points for one in series):
        return None
    return line_chart(title, Axis(f"samples, {last} last", whole=True), Axis("nats per token"), series)


def _points(
    samples: Sequence[SampleMeasures], value: Callable[[SampleMeasures], float]
) -> list[tuple[float, float]]:
    points = [(float(place), value(sample)) for place, sample in enumerate(samples, 1)]
    return [point for point in points if math.isfinite(point[1])]


def _finite(value: float) -> float:
    """Returns a sort key that puts values that are not finite last."""
    return value if math.isfinite(value) else math.inf
