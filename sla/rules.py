"""Prometheus rules: recorded shares, alerts on how fast error budgets burn, alerts on the engine.

Generated from the promises of the standard plan's classes and from the windows that tenants' reports use, so
that who is woken at night and what a tenant reads are the same arithmetic. `python -m sla.generate` writes
them to `deploy/prometheus/rules.yml`.
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
"""A reconciliation is made every night."""
LOW_DISK_SHARE = 0.1
RESTARTS = 3
QUEUED = 'rootstock_requests_waiting{service_tier!="flex"}'
"""Requests of class flex may wait as long as others come."""
LATE_SHARE = 0.05
"""Of first tokens after their class's target, above which somebody should look."""


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
    """How long it must be so."""
    labels: tuple[tuple[str, str], ...] = ()
    """Beside the severity: no two alerts may share name and labels."""


def window(minutes: int) -> str:
    """As PromQL writes it."""
    for unit, size in (("d", 1440), ("h", 60)):
        if minutes % size == 0:
            return f"{minutes // size}{unit}"
    return f"{minutes}m"


def recorded(share: str, minutes: int) -> str:
    """The name of the recorded share of what went badly, by class."""
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
            ("slow_output", terms.output_rate_ppm, "OutputRateBudgetBurning", "answers that come too slowly"),
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
    yield from _books_alerts()
    yield from _machine_alerts()


def _serving_alerts() -> Iterator[Alert]:
    yield Alert("EngineDown", "max(rootstock_engine_up) == 0", "page", "No engine serves.", "1m")
    yield Alert(
        "UsageHeldBack",
        "max(rootstock_usage_events_spooled) > 0",
        "ticket",
        "Usage waits on the engine's disk: the journal's Redis does not take it.",
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
        "The payment provider did not take what is owed: see `rootstock billing stripe manual`.",
        "5m",
    )
    yield Alert(
        "LimitsJudgedLocally",
        "max(rootstock_quotas_away) > 0",
        "page",
        "Redis is away: rates go by each process's share, and requests that count to a budget are refused.",
        "1m",
    )
    yield Alert(
        "KvBlocksShort",
        "max(rootstock_kv_occupancy_ratio) > 0.95",
        "ticket",
        "Running requests hold nearly all KV blocks: others wait, or are preempted.",
        "15m",
    )
    yield Alert(
        "Shedding",
        "max by (service_tier) (rate(rootstock_shed_total[5m])) > 0",
        "ticket",
        "Requests are refused because they would wait too long: there is more load than engines.",
        "10m",
    )
    yield Alert(
        "RequestsQueueing",
        f"max by (service_tier) (min_over_time({QUEUED}[15m])) > 0 "
        f"and max by (service_tier) (deriv({QUEUED}[15m])) > 0",
        "ticket",
        "The queue of {{ $labels.service_tier }} requests has not been empty for 15 minutes, and grows.",
        "5m",
    )


def _books_alerts() -> Iterator[Alert]:
    yield Alert(
        "BooksDiffer",
        "max by (check) (rootstock_reconciliation_differences) > 0",
        "ticket",
        "The last reconciliation found {{ $value }} differences by the check {{ $labels.check }}: see "
        "`rootstock billing reconcile`.",
        "5m",
    )
    yield Alert(
        "BooksNotCompared",
        "max by (check) (rootstock_reconciliation_not_compared) > 0",
        "ticket",
        "The last reconciliation could not make the check {{ $labels.check }}.",
        "5m",
    )
    yield Alert(
        "ReconciliationOverdue",
        f"time() - max(rootstock_reconciliation_timestamp_seconds) > {OVERDUE_HOURS * 3600}",
        "ticket",
        f"The last reconciliation is older than {OVERDUE_HOURS} hours: is a worker with the queue of jobs "
        "running?",
        "5m",
    )
    yield Alert(
        "ReconciliationMissing",
        "absent(rootstock_reconciliation_timestamp_seconds)",
        "ticket",
        "No reconciliation has ever been made: is a worker with the queue of jobs running?",
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
        f"{{{{ $labels.process }}}} was started again more than {RESTARTS} times in half an hour: "
        "its log says why it ends.",
        "0m",
    )


def _often(start_time: str, process: str) -> str:
    """More than so many changes of a start time; with the labels of a count by process, which comes first."""
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
        f"The month's allowance of {what} in class {tier} is being used up {burn.factor:g} times too fast, "
        f"over {window(burn.long_minutes)} and {window(burn.short_minutes)}."
    )
    labels = (("service_tier", tier.value), ("window", window(burn.long_minutes)))
    return Alert(name, both, burn.severity, summary, labels=labels)


def rules_yaml() -> str:
    """The rules file."""
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
    """JSON's strings are YAML's."""
    return json.dumps(text, ensure_ascii=False)
