"""Converts an engine's heartbeat to the report that a router takes."""

from __future__ import annotations

from engine.gauges import KEY_BYTES, EngineStats, adapter_key
from routing.views import ReplicaReport


class ResidentAdapters:
    """The adapters that a heartbeat names; answers `in` by digest."""

    def __init__(self, keys: bytes) -> None:
        self._keys = frozenset(keys[begin : begin + KEY_BYTES] for begin in range(0, len(keys), KEY_BYTES))

    def __contains__(self, digest: object) -> bool:
        return isinstance(digest, str) and adapter_key(digest) in self._keys


def report_of(stats: EngineStats) -> ReplicaReport:
    """Returns what a heartbeat says of its replica."""
    return ReplicaReport(
        rows_total=max(1, stats.rows_total),
        rows_taken=stats.running + sum(stats.waiting.values()) + stats.prompts_fetching,
        predicted_wait=stats.predicted_wait,
        prompt_rate=stats.prompt_rate,
        load_seconds=stats.adapter_load_seconds / stats.adapter_loads if stats.adapter_loads else 0.0,
        resident=None if stats.resident is None else ResidentAdapters(stats.resident),
        draining=stats.draining,
    )
