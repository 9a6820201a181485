"""What the state of each component follows from."""

from __future__ import annotations

import pytest

from sla.status.components import (
    API,
    BILLING,
    CONSOLE,
    UPLOADS,
    ProcessReport,
    Served,
    Signals,
    State,
    assess,
    under_maintenance,
)
from tenants.tier_terms import DEFAULTS, Terms

READY = ProcessReport(0.0, (), {"llama": True})
NO_DATABASE = ProcessReport(0.0, ("postgres", "schema"), {"llama": True})
NO_REDIS = ProcessReport(0.0, ("redis",), {"llama": True})
NO_DISK = ProcessReport(0.0, ("disk",), {"llama": True})
NO_ENGINE = ProcessReport(0.0, (), {"llama": False})
TERMS = {tier.value: terms for tier, terms in DEFAULTS.items()}
DEFAULT, FLEX = TERMS["default"], TERMS["flex"]


def states(*processes: ProcessReport, **signals: object) -> dict[str, State]:
    return assess(Signals(processes=processes, **signals))  # type: ignore[arg-type]


def test_all_is_well() -> None:
    found = states(READY, READY)
    assert set(found) == {API, "base:llama", UPLOADS, CONSOLE, BILLING}
    assert set(found.values()) == {"operational"}


@pytest.mark.parametrize(
    ("processes", "component", "state"),
    [
        ((), API, "down"),
        ((READY, NO_REDIS), API, "degraded"),
        ((NO_REDIS, NO_REDIS), API, "down"),
        ((NO_DATABASE, NO_DATABASE), API, "degraded"),
        ((NO_ENGINE,), API, "down"),
        ((READY, NO_ENGINE), "base:llama", "degraded"),
        ((NO_ENGINE, NO_ENGINE), "base:llama", "down"),
        ((READY, NO_DATABASE), CONSOLE, "degraded"),
        ((NO_DATABASE,), CONSOLE, "down"),
        ((READY, NO_DISK), UPLOADS, "operational"),
        ((NO_DISK,), UPLOADS, "down"),
    ],
)
def test_processes_say_what_they_reach(
    processes: tuple[ProcessReport, ...], component: str, state: str
) -> None:
    assert states(*processes)[component] == state


@pytest.mark.parametrize(
    ("terms", "served", "state"),
    [
        (DEFAULT, Served(1000, 20), "operational"),
        (DEFAULT, Served(1000, 80), "degraded"),
        (DEFAULT, Served(1000, 501), "down"),
        (DEFAULT, Served(19, 19), "operational"),
        (FLEX, Served(1000, 400), "operational"),
        (FLEX, Served(1000, 501), "down"),
        (DEFAULT, Served(1000, 0, 1000, 900), "operational"),
        (DEFAULT, Served(1000, 0, 1000, 899), "degraded"),
        (DEFAULT, Served(19, 0, 19, 0), "operational"),
    ],
)
def test_requests_are_held_to_the_service_levels(terms: Terms, served: Served, state: str) -> None:
    assert states(READY, served=[(FLEX, Served(50)), (terms, served)])[API] == state


@pytest.mark.parametrize(
    ("signals", "component", "state"),
    [
        ({"oldest_job_s": 901.0}, UPLOADS, "degraded"),
        ({"oldest_job_s": 3601.0}, UPLOADS, "down"),
        ({"metering_lag_s": 301.0}, BILLING, "degraded"),
        ({"metering_lag_s": 3601.0}, BILLING, "down"),
        ({"has_database": False}, UPLOADS, "down"),
        ({"has_database": False}, BILLING, "degraded"),
    ],
)
def test_work_that_waits(signals: dict[str, object], component: str, state: str) -> None:
    found = states(READY, **signals)
    assert found[component] == state
    assert found[API] == "operational"


def test_a_base_of_before_is_down_when_no_process_speaks() -> None:
    assert assess(Signals(), ["llama"])["base:llama"] == "down"


def test_maintenance_is_of_the_components_that_it_names() -> None:
    found = states(NO_REDIS)
    assert under_maintenance(found, frozenset({API}))[API] == "maintenance"
    assert under_maintenance(found, frozenset({API}))[CONSOLE] == "operational"
    assert set(under_maintenance(found, None).values()) == {"maintenance"}
