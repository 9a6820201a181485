"""The rules and the dashboard: what is committed is what is generated, and asks for metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from api.metrics.background_work import BackgroundResponseMetrics, BackgroundWorkCollector
from api.metrics.batches import BatchMetrics
from api.metrics.disk import DiskCollector
from api.metrics.engine import EngineCollector
from api.metrics.payments import STATES, PaymentsCollector
from api.metrics.quotas import QuotaCollector
from api.metrics.reconciliation import BooksCollector
from api.metrics.restarts import RestartsCollector
from batches.repository import BatchBacklog
from billing.reconciliation.differences import Report, outcomes_of
from conversations.background.repository import ResponseBacklog
from db.session import Database
from engine.protocol import EngineStats, PriorityClass
from sla.dashboard import SECTIONS, dashboard_json
from sla.generate import FILES
from sla.objectives import BURN_ALERTS
from sla.rules import alerts, recordings, rules_yaml
from telemetry.metrics import CLASSES, ServingMetrics
from tenants.quotas import Quotas

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DOCS = Path(__file__).resolve().parents[2] / "docs"
BY_CLASS = dict.fromkeys(PriorityClass, 1)


@pytest.fixture(scope="module")
def exposed() -> set[str]:
    """Names of all samples that an API process with an engine shows."""
    metrics = ServingMetrics()
    metrics.failed("x")
    metrics.http("GET", "/", 200, 0.1)
    for tier in CLASSES:
        metrics.first_token(tier, 0.1)
        metrics.answered(tier, 0.1, 0.1)
        metrics.billed(tier, 1, 1, 1)
    stats = EngineStats(
        "engine-0",
        "i",
        waiting=BY_CLASS,
        running_by_class=BY_CLASS,
        predicted_wait=BY_CLASS,
        preempted=BY_CLASS,
        shed=BY_CLASS,
        admitted=BY_CLASS,
        queue_seconds=BY_CLASS,
        disk_free_bytes=1,
        disk_total_bytes=2,
        started_at=1.0,
    )
    mirrored = CollectorRegistry()
    engine: Any = SimpleNamespace(info=None, stats=stats, ready=True)
    mirrored.register(EngineCollector(lambda: [engine]))
    payments = PaymentsCollector(Database("postgresql+psycopg://nobody@localhost/none"))
    payments._counts = dict.fromkeys(STATES, 1)
    mirrored.register(payments)
    background = BackgroundWorkCollector(Database("postgresql+psycopg://nobody@localhost/none"))
    background._batches = BatchBacklog({"in_progress": 1}, 1, 1.0, 1.0)
    background._responses = ResponseBacklog({"queued": 1}, 1.0)
    mirrored.register(background)
    BatchMetrics(mirrored)
    BackgroundResponseMetrics(mirrored)
    mirrored.register(QuotaCollector(Quotas("redis://localhost", "nobody")))
    mirrored.register(DiskCollector(Path("/"), lambda: [stats]))
    books = BooksCollector(None)  # type: ignore[arg-type]
    books._latest = Report("r", NOW, NOW, NOW, NOW, outcomes_of([], {}), 0, [])
    mirrored.register(books)
    restarts = RestartsCollector(None)  # type: ignore[arg-type]
    restarts._counts = {"engine": 1}
    mirrored.register(restarts)
    shown = generate_latest(metrics.registry) + generate_latest(mirrored)
    return set(re.findall(r"^(rootstock_\w+)", shown.decode(), re.MULTILINE))


def expressions() -> Iterator[str]:
    yield from (recording.expr for recording in recordings())
    yield from (alert.expr for alert in alerts())
    for _, section in SECTIONS:
        for panel in section:
            yield from (expr.replace("$__rate_interval", "5m") for expr, _ in panel.queries)


def test_every_expression_is_promql_over_metrics_that_exist(exposed: set[str]) -> None:
    known = exposed | {recording.name for recording in recordings()}
    for expression in expressions():
        promql_parser.parse(expression)
        names = set(re.findall(r"rootstock[_:][\w:]+", expression))
        assert names, expression
        assert names <= known, expression


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_committed_is_what_is_generated(path: Path) -> None:
    assert path.read_text() == FILES[path](), "run `python -m sla.generate`"


def test_the_rules_are_yaml_that_says_the_same() -> None:
    shares, alerting = yaml.safe_load(rules_yaml())["groups"]
    assert [(rule["record"], rule["expr"]) for rule in shares["rules"]] == [
        (recording.name, recording.expr) for recording in recordings()
    ]
    assert [(rule["alert"], rule["expr"], rule["labels"]) for rule in alerting["rules"]] == [
        (alert.name, alert.expr, {"severity": alert.severity, **dict(alert.labels)}) for alert in alerts()
    ]


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("EngineDown", "rootstock_engine_up"),
        ("UsageHeldBack", "rootstock_usage_events_spooled"),
        ("RequestsQueueing", "rootstock_requests_waiting"),
        ("BooksDiffer", "rootstock_reconciliation_differences"),
        ("BooksNotCompared", "rootstock_reconciliation_not_compared"),
        ("ReconciliationOverdue", "rootstock_reconciliation_timestamp_seconds"),
        ("ReconciliationMissing", "rootstock_reconciliation_timestamp_seconds"),
        ("DiskFillingUp", "rootstock_disk_free_bytes"),
        ("DiskNearlyFull", "rootstock_disk_free_bytes"),
        ("RestartLoop", "rootstock_process_restarts_total"),
        ("RestartLoop", "rootstock_engine_start_time_seconds"),
    ],
)
def test_what_the_manual_says_to_watch_is_alerted_on(name: str, metric: str) -> None:
    [alert] = [alert for alert in alerts() if alert.name == name]
    assert metric in alert.expr
    assert name in (DOCS / "operations.md").read_text(), "an alert that wakes somebody is in the manual"


def test_no_two_alerts_share_their_name_and_labels() -> None:
    """Prometheus takes them for one alert, whose annotations then depend on which rule fired."""
    known = [(alert.name, alert.severity, alert.labels) for alert in alerts()]
    assert len(set(known)) == len(known)
    assert {dict(alert.labels).get("service_tier") for alert in alerts() if "Burning" in alert.name} == {
        "priority",
        "default",
    }


def test_each_promise_is_watched_over_every_pair_of_windows() -> None:
    burning = [alert.expr for alert in alerts() if "Burning" in alert.name]
    assert len(burning) == 3 * len(BURN_ALERTS), "availability of two classes, output rate of one"
    assert (
        'rootstock:failure_ratio:rate1h{service_tier="priority"} > 0.0144 and '
        'rootstock:failure_ratio:rate5m{service_tier="priority"} > 0.0144'
    ) in burning


def test_panels_do_not_overlap() -> None:
    cells: set[tuple[int, int]] = set()
    for panel in json.loads(dashboard_json())["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        cells |= own
        assert place["x"] + place["w"] <= 24


def test_the_classes_are_the_engines() -> None:
    assert {tier.value for tier in PriorityClass} == set(CLASSES)
