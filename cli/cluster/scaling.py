"""Decides how many engines a cluster runs, from their queues and from the share of requests they reject.

Plain computation: the caller gives the time, and applies the result.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """What the engines that serve reported last, all together."""

    engines: int
    rows: int
    """Requests that they can run at once."""
    running: int
    waiting: int
    wait_s: float
    """Expected wait of a new request on the engine where it is shortest."""
    late_share: float = 0.0
    """Of the requests since the last look, those rejected because their first token would come later than
    their class's target."""


@dataclass(frozen=True, slots=True)
class ScalingRules:
    """Bounds, thresholds, and for how long these must be passed."""

    engines_min: int
    engines_max: int
    wait_s: float = 2.0
    """A longer expected wait asks for an engine."""
    late_share: float = 0.01
    """So does a larger share of rejected requests."""
    busy_share: float = 0.5
    """An engine is released only if the others would have less than this share of their rows taken."""
    grow_after_s: float = 10.0
    shrink_after_s: float = 300.0
    settle_s: float = 60.0
    """Seconds after a change for it to take effect: an engine must load its base first."""


class Autoscaler:
    """Keeps how long the load has called for more or fewer engines.

    Grows and shrinks by one. Between the thresholds nothing changes, and the one for shrinking is the load
    that the smaller cluster would have, so that a steady load never alternates.
    """

    def __init__(self, rules: ScalingRules, engines: int) -> None:
        """`engines`: those that are wanted at the start."""
        self._rules = rules
        self.wanted = min(max(engines, rules.engines_min), rules.engines_max)
        self.reason = "the least allowed"
        self._grow_since: float | None = None
        self._shrink_since: float | None = None
        self._changed_at = float("-inf")

    def decide(self, load: ClusterLoad, now: float) -> int:
        """Returns how many engines are wanted, given the load at `now` (seconds)."""
        rules = self._rules
        why_grow = _why_grow(load, rules)
        self._grow_since = _since(self._grow_since, why_grow is not None, now)
        self._shrink_since = _since(self._shrink_since, why_grow is None and _has_spare(load, rules), now)
        # Engines that were asked for and do not serve yet must not be asked for twice.
        is_settled = load.engines >= self.wanted and now - self._changed_at >= rules.settle_s
        if why_grow is not None and _lasts(self._grow_since, now, rules.grow_after_s) and is_settled:
            self._change(min(self.wanted + 1, rules.engines_max), why_grow, now)
        elif _lasts(self._shrink_since, now, rules.shrink_after_s) and is_settled:
            self._change(max(self.wanted - 1, rules.engines_min), "the others have room for its load", now)
        return self.wanted

    def _change(self, wanted: int, reason: str, now: float) -> None:
        if wanted != self.wanted:
            self.wanted, self.reason, self._changed_at = wanted, reason, now
            self._grow_since = self._shrink_since = None


def _why_grow(load: ClusterLoad, rules: ScalingRules) -> str | None:
    if load.wait_s > rules.wait_s:
        return f"a request waits {load.wait_s:.1f} s, more than {rules.wait_s:g} s"
    if load.waiting > 0 and load.running + load.waiting > load.rows:
        return f"{load.running + load.waiting} requests, more than {load.rows} rows"
    if load.late_share > rules.late_share:
        return f"{load.late_share:.1%} of requests miss their target, more than {rules.late_share:.1%}"
    return None


def _has_spare(load: ClusterLoad, rules: ScalingRules) -> bool:
    if load.engines <= 1 or load.waiting:
        return False
    rows_left = load.rows * (load.engines - 1) / load.engines
    return load.running < rules.busy_share * rows_left


def _since(since: float | None, holds: bool, now: float) -> float | None:
    if not holds:
        return None
    return now if since is None else since


def _lasts(since: float | None, now: float, seconds: float) -> bool:
    return since is not None and now - since >= seconds
