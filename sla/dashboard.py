"""Generates the Grafana dashboard of serving, from this service's metrics and the recorded shares.

`python -m sla.generate` writes it to `deploy/grafana/serving.json`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sla.rules import recorded

_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 24
_TIER_AND_OUTCOME = "{{service_tier}} {{outcome}}"
_TIER = '{service_tier=~"$tier"}'


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str
    """Grafana's name of the unit."""
    queries: Sequence[tuple[str, str]]
    """(PromQL, legend) of each query."""
    description: str = ""
    stacked: bool = False
    most: float | None = None
    """The upper end of the axis."""


def _quantile(share: float, metric: str) -> str:
    return (
        f"histogram_quantile({share:g}, sum by (le, service_tier) "
        f"(rate(rootstock_{metric}_bucket{_TIER}[$__rate_interval])))"
    )


def _rate(metric: str, by: str = "", selector: str = "") -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate(rootstock_{metric}_total{selector}[$__rate_interval]))"


def _engine(metric: str) -> str:
    """Adds up a metric of engines. Every API process exposes it alike: the maximum is one of them."""
    return f"sum(max by (replica) (rootstock_{metric}))"


def _engine_rate(metric: str) -> str:
    return f"sum(max by (replica) (rate(rootstock_{metric}_total[$__rate_interval])))"


def _largest(metric: str) -> str:
    return f"max(rootstock_{metric})"


_READ = _engine_rate("engine_step_bytes")
_PEAK = "max(rootstock_engine_memory_bandwidth_bytes > 0)"
"""Of one engine. No series where the bandwidth is unknown."""
_ALL_PEAKS = "sum(max by (replica) (rootstock_engine_memory_bandwidth_bytes > 0))"


def _by_class(metric: str) -> list[tuple[str, str]]:
    each = f"max by (service_tier, replica) (rootstock_{metric}{_TIER})"
    return [(f"sum by (service_tier) ({each})", "{{service_tier}}")]


def _longest_by_class(metric: str) -> list[tuple[str, str]]:
    return [(f"max by (service_tier) (rootstock_{metric}{_TIER})", "{{service_tier}}")]


def _rate_by_class(metric: str) -> list[tuple[str, str]]:
    each = f"max by (service_tier, replica) (rate(rootstock_{metric}_total{_TIER}[$__rate_interval]))"
    return [(f"sum by (service_tier) ({each})", "{{service_tier}}")]


def _percentiles(metric: str) -> list[tuple[str, str]]:
    return [
        (_quantile(share, metric), f"p{share * 100:g} {{{{service_tier}}}}") for share in (0.5, 0.95, 0.99)
    ]


SECTIONS: Sequence[tuple[str, Sequence[Panel]]] = (
    (
        "Requests",
        (
            Panel(
                "Time to first token",
                "s",
                _percentiles("time_to_first_token_seconds"),
                "From a request's arrival at the API to its first token.",
            ),
            Panel(
                "Time per output token",
                "s",
                _percentiles("time_per_output_token_seconds"),
                "Mean of each response, after its first token.",
            ),
            Panel("Request duration", "s", _percentiles("request_duration_seconds")),
            Panel(
                "Requests", "reqps", [(_rate("requests", "service_tier, outcome", _TIER), _TIER_AND_OUTCOME)]
            ),
            Panel("Tokens billed", "ops", [(_rate("tokens", "kind", _TIER), "{{kind}}")], stacked=True),
            Panel("Errors by code", "ops", [(_rate("errors", "code"), "{{code}}")], stacked=True),
        ),
    ),
    (
        "Service-level objectives",
        (
            Panel(
                "Failed requests",
                "percentunit",
                [(f"{recorded('failure', 60)}{_TIER}", "{{service_tier}}, 1 h")],
                "Server errors; a client's errors do not count.",
            ),
            Panel(
                "First tokens after their target",
                "percentunit",
                [(f"{recorded('late_first_token', 60)}{_TIER}", "{{service_tier}}, 1 h")],
            ),
            Panel(
                "Responses below the promised output rate",
                "percentunit",
                [(f"{recorded('slow_output', 60)}{_TIER}", "{{service_tier}}, 1 h")],
            ),
        ),
    ),
    (
        "Queue",
        (
            Panel("Queued requests by tier", "short", _by_class("requests_waiting"), stacked=True),
            Panel(
                "Predicted wait",
                "s",
                _longest_by_class("predicted_wait_seconds"),
                "For a short request that arrives now; above its tier's target, requests are refused.",
            ),
            Panel(
                "Queue wait",
                "s",
                [
                    (
                        "max by (service_tier) (rate(rootstock_queue_wait_seconds_sum[$__rate_interval]) / "
                        "rate(rootstock_queue_wait_seconds_count[$__rate_interval]))",
                        "{{service_tier}}",
                    )
                ],
                "Mean, from submission to the first step.",
            ),
            Panel("Refused because of overload", "ops", _rate_by_class("shed")),
            Panel("Preempted", "ops", _rate_by_class("preempted")),
            Panel("Open streams", "short", [("sum(rootstock_open_streams)", "streams")]),
        ),
    ),
    (
        "Engine",
        (
            Panel(
                "Batch by service tier",
                "short",
                [
                    *_by_class("requests_running_by_class"),
                    (_engine("batch_rows"), "capacity"),
                ],
            ),
            Panel(
                "Step",
                "s",
                [
                    (f"{_engine_rate('engine_step_seconds')} / {_engine_rate('engine_steps')}", "step"),
                    (
                        f"{_engine_rate('engine_step_gap_seconds')} / {_engine_rate('engine_steps')}",
                        "gap before it",
                    ),
                ],
            ),
            Panel(
                "Memory bandwidth used",
                "percentunit",
                [
                    (f"{_READ} / {_engine_rate('engine_step_seconds')} / {_PEAK}", "while steps run"),
                    (f"{_READ} / {_ALL_PEAKS}", "overall"),
                ],
                "Bytes that steps must read at least (weights, keys and values, adapters) over the "
                "bandwidth of the device's memory. Decoding is bound by it.",
                most=1,
            ),
            Panel(
                "Tokens computed",
                "ops",
                [
                    (_engine_rate("engine_prefill_tokens"), "prefill"),
                    (_engine_rate("engine_decode_tokens"), "decode"),
                ],
                stacked=True,
            ),
            Panel("KV blocks in use", "percentunit", [(_largest("kv_occupancy_ratio"), "held")], most=1),
            Panel(
                "Prompt tokens from the prefix cache",
                "percentunit",
                [
                    (
                        f"{_engine_rate('engine_cached_tokens')} / {_engine_rate('engine_prompt_tokens')}",
                        "hits",
                    )
                ],
                most=1,
            ),
            Panel(
                "Steps by graph",
                "ops",
                [
                    (_engine_rate("engine_graph_replays"), "replayed"),
                    (_engine_rate("engine_eager_steps"), "eager"),
                ],
                stacked=True,
            ),
        ),
    ),
    (
        "Adapters and metering",
        (
            Panel(
                "Adapter slots",
                "short",
                [
                    (_engine("adapter_slots_resident"), "resident"),
                    (_engine("adapter_slots_loading"), "loading"),
                    (_engine("adapter_slots"), "total"),
                ],
            ),
            Panel(
                "Adapter loads",
                "ops",
                [(_engine_rate("adapter_loads"), "loads"), (_engine_rate("adapter_evictions"), "evictions")],
            ),
            Panel(
                "Usage waiting on disk",
                "short",
                [(_engine("usage_events_spooled"), "events")],
                "Above 0 while Redis is unavailable.",
            ),
        ),
    ),
    (
        "Work in the background",
        (
            Panel(
                "Batches and background responses that have not ended",
                "short",
                [
                    ("max by (status) (rootstock_batches_open)", "batches {{status}}"),
                    ("max by (status) (rootstock_background_responses_open)", "responses {{status}}"),
                ],
            ),
            Panel(
                "Lines of batches that ended",
                "ops",
                [(_rate("batch_lines", "outcome"), "{{outcome}}")],
                stacked=True,
            ),
            Panel(
                "Age of the oldest",
                "s",
                [
                    (_largest("batch_oldest_seconds"), "batch"),
                    (_largest("background_response_oldest_seconds"), "background response"),
                ],
            ),
        ),
    ),
)


def dashboard_json() -> str:
    """Returns the dashboard as JSON, for import or provisioning."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, section in SECTIONS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": top},
            }
        )
        top += 1
        for number, panel in enumerate(section):
            place = {"h": _HEIGHT, "w": _WIDTH, "x": number % 3 * _WIDTH, "y": top + number // 3 * _HEIGHT}
            panels.append({"id": len(panels) + 1, "gridPos": place} | _drawn(panel))
        top += -(-len(section) // 3) * _HEIGHT
    document = {
        "uid": "rootstock-serving",
        "title": "Rootstock: serving",
        "tags": ["rootstock"],
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "graphTooltip": 1,
        "templating": {"list": [_SOURCE, _CLASSES]},
        "panels": panels,
    }
    return json.dumps(document, indent=2) + "\n"


_SOURCE = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
_CLASSES = {
    "name": "tier",
    "label": "Service tier",
    "type": "query",
    "datasource": {"type": "prometheus", "uid": "${source}"},
    "query": "label_values(rootstock_requests_total, service_tier)",
    "includeAll": True,
    "multi": True,
    "current": {"text": "All", "value": "$__all"},
    "refresh": 2,
}


def _drawn(panel: Panel) -> dict[str, Any]:
    custom: dict[str, Any] = {
        "fillOpacity": 25 if panel.stacked else 8,
        "lineWidth": 1,
        "showPoints": "never",
    }
    if panel.stacked:
        custom["stacking"] = {"mode": "normal"}
    limits = {"min": 0} | ({} if panel.most is None else {"max": panel.most})
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom, **limits}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": source, "expr": expr, "legendFormat": legend}
            for number, (expr, legend) in enumerate(panel.queries)
        ],
    }
