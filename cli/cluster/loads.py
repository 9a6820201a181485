"""Sums the engines' heartbeats to the load that the autoscaler decides on."""

from __future__ import annotations

from collections.abc import Sequence

from cli.cluster.scaling import ClusterLoad
from engine.gauges import EngineStats


class LoadReader:
    """Turns counters of incarnations into shares since the last look."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        """By incarnation: requests admitted, and rejected as overloaded."""

    def read(self, latest: Sequence[EngineStats]) -> ClusterLoad:
        """Returns the load of the engines that serve; draining ones take no requests and do not count."""
        serving = [stats for stats in latest if not stats.draining]
        waits = [max(stats.predicted_wait.values(), default=0.0) for stats in serving]
        return ClusterLoad(
            engines=len(serving),
            rows=sum(stats.rows_total for stats in serving),
            running=sum(stats.running for stats in serving),
            waiting=sum(sum(stats.waiting.values()) for stats in serving),
            wait_s=min(waits, default=0.0),
            late_share=self._late_share(serving),
        )

    def _late_share(self, serving: Sequence[EngineStats]) -> float:
        seen = {
            stats.incarnation: (sum(stats.admitted.values()), sum(stats.shed.values())) for stats in serving
        }
        admitted = shed = 0
        for incarnation, (admitted_now, shed_now) in seen.items():
            admitted_before, shed_before = self._seen.get(incarnation, (admitted_now, shed_now))
            admitted += admitted_now - admitted_before
            shed += shed_now - shed_before
        self._seen = seen
        return shed / (admitted + shed) if shed else 0.0
