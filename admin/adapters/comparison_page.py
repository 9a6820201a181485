"""Gathers the page that compares two versions of an adapter: what they are, and how they measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from adapters.catalogue import AdapterCatalogue
from adapters.errors import VersionNotFound
from adapters.model_names import ModelName
from adapters.models import Adapter, AdapterVersion, VersionState
from adapters.regression import Regression, regression_of
from admin import formatting
from admin.adapters.page import MAX_VERSIONS, version_state
from admin.badge import Badge

_ORIGINS = {
    "tenant": "your samples",
    "base": "default samples of the base model",
    "general": "general samples",
}
_FACTS = ("Rank", "Precision", "Size")
BETTER, WORSE = Badge("Better", "good"), Badge("Worse", "bad")


@dataclass(frozen=True)
class Score:
    """One measure of a calibration."""

    id: str
    """In the version's `calibration`."""
    title: str
    hint: str
    is_higher_better: bool
    as_text: Callable[[float | None], str] = formatting.figure


_SCORES = (
    Score("gain", "Gain over base model", "Nats per token, as served", True),
    Score("nll", "Loss", "Nats per token, as served", False),
    Score("nll_rise", "Loss from quantization", "Nats per token over the unquantized model", False),
    Score("top1", "Top-1 agreement", "With the unquantized model", True, formatting.percent),
    Score("perplexity", "Perplexity", "As served", False),
)


@dataclass(frozen=True)
class ScoreRow:
    title: str
    hint: str
    left: str
    right: str
    difference: str
    verdict: Badge | None
    """Of the right version beside the left one; None: equal to what is shown, or not known."""


@dataclass(frozen=True)
class Side:
    version: int
    model: str
    state: Badge
    is_active: bool
    can_answer: bool
    created_at: datetime
    measured_on: str
    verdict: str
    """Of the calibration; empty if it wasn't measured."""


@dataclass(frozen=True)
class Comparison:
    adapter: Adapter
    choices: list[tuple[int, str]]
    left: Side | None
    """None, as `right`: there aren't two versions."""
    right: Side | None
    facts: list[tuple[str, str, str]]
    """Name, and both versions'."""
    scores: list[ScoreRow]
    are_comparable: bool
    """Whether both were measured on samples of the same origin and number."""
    regression: Regression | None
    """Of the right version beside the active one."""


class ComparisonPage:
    def __init__(self, catalogue: AdapterCatalogue) -> None:
        self._catalogue = catalogue

    async def gather(self, tenant_id: str, adapter: str, left: int | None, right: int | None) -> Comparison:
        """By default the newest version beside the active one. Raises AdapterNotFound, VersionNotFound."""
        shown, versions = await self._catalogue.versions(
            tenant_id, adapter, limit=MAX_VERSIONS, newest_first=True
        )
        row = shown.adapter
        numbers = [one.version for one in versions]
        choices = [(number, _choice(row, number)) for number in numbers]
        if len(numbers) < 2:
            return Comparison(row, choices, None, None, [], [], True, None)
        if left is None:
            candidates = [row.active_version, row.previous_version, *numbers[1:]]
            left = next(one for one in candidates if one is not None and one != (right or numbers[0]))
        if right is None:
            right = next(number for number in numbers if number != left)
        known = {one.version: one for one in versions}
        one, other = [
            known.get(number) or await self._version(tenant_id, row, number) for number in (left, right)
        ]
        old, new = one.calibration or {}, other.calibration or {}
        return Comparison(
            row,
            choices,
            _side(row, one),
            _side(row, other),
            [*zip(_FACTS, _facts(one), _facts(other), strict=True)],
            [
                _score(score, old.get(score.id), new.get(score.id))
                for score in _SCORES
                if old.get(score.id) is not None or new.get(score.id) is not None
            ],
            _samples(old) == _samples(new),
            regression_of(other, known.get(row.active_version or 0)),
        )

    async def _version(self, tenant_id: str, row: Adapter, number: int) -> AdapterVersion:
        _, version = await self._catalogue.version(tenant_id, row.id, number)
        if version.state == VersionState.DELETING:
            raise VersionNotFound(row.name, number)
        return version


def _choice(adapter: Adapter, number: int) -> str:
    return f"Version {number}{' (active)' if number == adapter.active_version else ''}"


def _side(adapter: Adapter, version: AdapterVersion) -> Side:
    found = version.calibration or {}
    measured_on = ""
    if found.get("num_samples"):
        origin = _ORIGINS.get(str(found.get("samples")), "unknown samples")
        measured_on = f"{found['num_samples']:,} {origin}"
    return Side(
        version.version,
        str(ModelName(adapter.base, adapter.name, version.version)),
        version_state(version),
        adapter.active_version == version.version,
        version.state == VersionState.READY and adapter.disabled_at is None,
        version.created_at,
        measured_on,
        "" if "ready" not in found else "Passed all checks" if found["ready"] else "Didn't pass all checks",
    )


def _facts(version: AdapterVersion) -> tuple[str, str, str]:
    return (
        formatting.count(version.rank),
        formatting.dtype(version.dtype),
        formatting.size(version.size),
    )


def _samples(found: dict[str, Any]) -> tuple[Any, Any]:
    return found.get("samples"), found.get("num_samples")


def _score(score: Score, old: Any, new: Any) -> ScoreRow:
    before, after = [float(one) if isinstance(one, int | float) else math.nan for one in (old, new)]
    texts = score.as_text(before), score.as_text(after)
    change = after - before
    verdict = None
    if math.isfinite(change) and texts[0] != texts[1]:
        verdict = BETTER if (change > 0) == score.is_higher_better else WORSE
    written = score.as_text(change) if verdict else formatting.NOTHING
    return ScoreRow(
        score.title, score.hint, *texts, f"+{written}" if verdict and change > 0 else written, verdict
    )
