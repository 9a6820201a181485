"""Generates the Prometheus rules: recorded shares, alerts on burn rates, alerts on the engine.

They come from the terms of the standard plan and from the windows of tenants' reports, so that alerts and
reports use the same arithmetic. `python -m sla.generate` writes them to `deploy/prometheus/rules.yml`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from engine.protocol import PriorityClass
from sla.objectives import BURN_ALERTS, WINDOWS, BurnAlert
from telemetry.disk import MIN_FREE_BYTES
from tenants.tier_terms import DEFAULTS, MILLION

BAD = {
    "failure": ("rootstock_requests_total", "failed"),
    "late_first_token": ("rootstock_first_tokens_total", "late"),
    "slow_output": ("rootstock_output_rates_total", "slow"),
}
"""By the name of the share: the counter, and the outcome that breaks the promise."""
OVERDUE_HOURS = 26
"""Hours after which the nightly reconciliation is overdue."""
LOW_DISK_SHARE = 0.1
RESTARTS = 3
QUEUED = 'rootstock_requests_waiting{service_tier!="flex"}'
"""Flex requests may wait for as long as others arrive."""
LATE_SHARE = 0.05
"""The share of late first tokens above which an operator should look."""
BATCH_HOURS_LEFT = 2
LATE_RESPONSE_MINUTES = 60
MANY_LEASES_LOST = 3
"""In 30 minutes, of all processes."""


@dataclass(frozen=True, slots=True)
class Recording:
    name: str
    expr: str


@dataclass(frozen=True, slots=True)
class Alert:
    name: str
    expr: str
    severity: str
    summary: str
    hold: str = "2m"
    """How long the condition must hold."""
    labels: tuple[tuple[str, str], ...] = ()
    """Besides the severity. No two alerts may share name and labels."""


def window(minutes: int) -> str:
    """Returns the duration as PromQL writes it."""
    for unit, size in (("d", 1440), ("h", 60)):
        if minutes % size == 0:
            return f"{minutes // size}{unit}"
    return f"{minutes}m"


def recorded(share: str, minutes: int) -> str:
    """Returns the name of the recorded share of bad outcomes, by service tier."""
    return f"rootstock:{share}_ratio:rate{window(minutes)}"


def recordings() -> Iterator[Recording]:
    for share, (counter, outcome) in BAD.items():
        for minutes in WINDOWS:
            over = window(minutes)
            bad = f'sum by (service_tier) (rate({counter}{{outcome="{outcome}"}}[{over}]))'
            yield Recording(
                recorded(share, minutes), f"{bad} / sum by (service_tier) (rate({counter}[{over}]))"
            )


def alerts() -> Iterator[Alert]:
    for tier, terms in DEFAULTS.items():
        for share, promised, name, what in (
            ("failure", terms.availability_ppm, "AvailabilityBudgetBurning", "requests that fail"),
            ("slow_output", terms.output_rate_ppm, "OutputRateBudgetBurning", "responses that are too slow"),
        ):
            if promised:
                for burn in BURN_ALERTS:
                    yield _burning(tier, share, promised, burn, name, what)
        yield Alert(
            "FirstTokensLate",
            f'{recorded("late_first_token", 30)}{{service_tier="{tier}"}} > {LATE_SHARE:g}',
            "ticket",
            f"More than {LATE_SHARE:.0%} of {tier} requests wait longer than {terms.ttft_target_ms} ms for "
            "their first token.",
            "10m",
            (("service_tier", tier.value),),
        )
    yield from _serving_alerts()
    yield from _background_alerts()
    yield from _books_alerts()
    yield from _machine_alerts()


def _serving_alerts() -> Iterator[Alert]:
    yield Alert("EngineDown", "max(rootstock_engine_up) == 0", "page", "No engine serves.", "1m")
    yield Alert(
        "ReplicaDown",
        "max by (replica) (rootstock_engine_up) == 0",
        "ticket",
        "Engine {{ $labels.replica }} does not serve; others take its requests.",
        "5m",
    )
    yield Alert(
        "UsageHeldBack",
        "max(rootstock_usage_events_spooled) > 0",
        "ticket",
        "Usage waits on the engine's disk: the journal's Redis does not accept it.",
        "5m",
    )
    yield Alert(
        "UsageSetAside",
        "max(rootstock_usage_files_set_aside) > 0",
        "ticket",
        "A damaged file of an engine's usage journal is set aside: run `rootstock billing import-spool`.",
        "1m",
    )
    yield Alert(
        "PaymentsNeedAPerson",
        'max(rootstock_payments_waiting{state="manual"}) > 0',
        "ticket",
        "The payment provider did not collect an amount: see `rootstock billing stripe manual`.",
        "5m",
    )
    yield Alert(
        "LimitsJudgedLocally",
        "max(rootstock_quotas_away) > 0",
        "page",
        "Redis is unavailable: each process applies its share of the rate limits, and requests that count "
        "to a budget are refused.",
        "1m",
    )
    yield Alert(
        "KvBlocksShort",
        "max(rootstock_kv_occupancy_ratio) > 0.95",
        "ticket",
        "Running requests hold nearly all KV blocks: other requests wait or are preempted.",
        "15m",
    )
    yield Alert(
        "Shedding",
        "max by (service_tier) (rate(rootstock_shed_total[5m])) > 0",
        "ticket",
        "Requests are refused because they would wait too long: the load exceeds the engines' capacity.",
        "10m",
    )
    yield Alert(
        "RequestsQueueing",
        f"max by (service_tier) (min_over_time({QUEUED}[15m])) > 0 "
        f"and max by (service_tier) (deriv({QUEUED}[15m])) > 0",
        "ticket",
        "The queue of {{ $labels.service_tier }} requests has not been empty for 15 minutes and grows.",
        "5m",
    )


def _background_alerts() -> Iterator[Alert]:
    yield Alert(
        "BatchesLate",
        f"min(rootstock_batch_window_left_seconds) < {BATCH_HOURS_LEFT * 3600}",
        "ticket",
        f"A batch expires in less than {BATCH_HOURS_LEFT} hours and has not ended.",
        "5m",
    )
    yield Alert(
        "BackgroundResponsesLate",
        f"max(rootstock_background_response_oldest_seconds) > {LATE_RESPONSE_MINUTES * 60}",
        "ticket",
        f"A background response has not ended after {LATE_RESPONSE_MINUTES} minutes.",
        "5m",
    )
    yield Alert(
        "BatchLeasesLost",
        f"sum(increase(rootstock_batch_leases_lost_total[30m])) > {MANY_LEASES_LOST}",
        "ticket",
        "API processes lose batches to each other: they stall, or do not reach PostgreSQL for longer than a "
        "lease.",
        "5m",
    )


def _books_alerts() -> Iterator[Alert]:
    yield Alert(
        "BooksDiffer",
        "max by (check) (rootstock_reconciliation_differences) > 0",
        "ticket",
        "The last reconciliation found {{ $value }} differences in the check {{ $labels.check }}: see "
        "`rootstock billing reconcile`.",
        "5m",
    )
    yield Alert(
        "BooksNotCompared",
        "max by (check) (rootstock_reconciliation_not_compared) > 0",
        "ticket",
        "The last reconciliation could not run the check {{ $labels.check }}.",
        "5m",
    )
    yield Alert(
        "ReconciliationOverdue",
        f"time() - max(rootstock_reconciliation_timestamp_seconds) > {OVERDUE_HOURS * 3600}",
        "ticket",
        f"The last reconciliation is older than {OVERDUE_HOURS} hours: is a worker running with the queue "
        "rootstock.jobs?",
        "5m",
    )
    yield Alert(
        "ReconciliationMissing",
        "absent(rootstock_reconciliation_timestamp_seconds)",
        "ticket",
        "No reconciliation was ever made: is a worker running with the queue rootstock.jobs?",
        f"{OVERDUE_HOURS}h",
    )


def _machine_alerts() -> Iterator[Alert]:
    directory = "The disk of the {{ $labels.directory }} directory of {{ $labels.instance }}"
    yield Alert(
        "DiskFillingUp",
        f"rootstock_disk_free_bytes / rootstock_disk_size_bytes < {LOW_DISK_SHARE:g}",
        "ticket",
        directory + " has {{ $value | humanizePercentage }} left.",
        "15m",
    )
    yield Alert(
        "DiskNearlyFull",
        f"rootstock_disk_free_bytes < {2 * MIN_FREE_BYTES}",
        "page",
        directory + " has {{ $value | humanize1024 }}B left; at half of that the service is not ready.",
        "1m",
    )
    yield Alert(
        "RestartLoop",
        f"max by (process) (increase(rootstock_process_restarts_total[30m])) > {RESTARTS} "
        f"or {_often('rootstock_engine_start_time_seconds', 'engine')} "
        f"or {_often('process_start_time_seconds and on (instance, job) rootstock_engine_up', 'api')}",
        "page",
        f"{{{{ $labels.process }}}} was restarted more than {RESTARTS} times in half an hour: "
        "its log says why it exits.",
        "0m",
    )


def _often(start_time: str, process: str) -> str:
    """Matches a start time that changed too often, with the labels of the count by process."""
    metric, _, only = start_time.partition(" ")
    changes = f"changes({metric}[30m]) {only}".strip()
    return f'label_replace(max({changes}) > {RESTARTS}, "process", "{process}", "", "")'


def _burning(tier: PriorityClass, share: str, promised: int, burn: BurnAlert, name: str, what: str) -> Alert:
    threshold = burn.factor * (MILLION - promised) / MILLION
    both = " and ".join(
        f'{recorded(share, minutes)}{{service_tier="{tier}"}} > {threshold:g}'
        for minutes in (burn.long_minutes, burn.short_minutes)
    )
    summary = (
        f"The month's error budget of {what} in tier {tier} is burning {burn.factor:g} times too fast, "
        f"over {window(burn.long_minutes)} and {window(burn.short_minutes)}."
    )
    labels = (("service_tier", tier.value), ("window", window(burn.long_minutes)))
    return Alert(name, both, burn.severity, summary, labels=labels)


def rules_yaml() -> str:
    """Returns the rules file."""
    lines = [
        "# Generated by `python -m sla.generate`; change sla/rules.py instead.",
        "groups:",
        "  - name: rootstock-shares",
        "    rules:",
    ]
    for recording in recordings():
        lines += [f"      - record: {recording.name}", f"        expr: {_quoted(recording.expr)}"]
    lines += ["  - name: rootstock-alerts", "    rules:"]
    for alert in alerts():
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {_quoted(alert.expr)}",
            f"        for: {alert.hold}",
            "        labels:",
            f"          severity: {alert.severity}",
            *(f"          {name}: {value}" for name, value in alert.labels),
            "        annotations:",
            f"          summary: {_quoted(alert.summary)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Returns a YAML string: JSON strings are YAML."""
    return json.dumps(text, ensure_ascii=False)
