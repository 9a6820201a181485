"""Names the components of the status page, and derives their states from what was measured of the service.

    component    operational unless
    api          no API process is ready; some are not; requests fail; first tokens are late
    base:NAME    no API process is connected to a serving engine of the base; some are not
    uploads      the database or the disk of uploads is away; jobs wait long for a worker
    console      the database is away from every API process
    billing      usage waits long to be metered; the database is away

This is plain computation. A tenant, a host or a version is in none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from sla.objectives import BURN_ALERTS, burn_rate
from tenants.tier_terms import MILLION, Terms

State = Literal["operational", "degraded", "down", "maintenance"]
ORDER: tuple[State, ...] = ("operational", "maintenance", "degraded", "down")
"""From the best to the worst."""

API, UPLOADS, CONSOLE, BILLING = "api", "uploads", "console", "billing"
BASE = "base:"
TITLES = {
    API: "API",
    UPLOADS: "Uploads and calibration",
    CONSOLE: "Console",
    BILLING: "Billing",
}
_DATABASE_CHECKS = frozenset({"postgres", "schema"})
"""Without these alone, keys and models that are cached go on being served."""

MIN_REQUESTS = 20
"""Requests in the window below which shares say nothing."""
MOSTLY = MILLION // 2
"""Millionths of failed requests above which the API counts as down."""
LATE = MILLION // 10
"""Millionths of first tokens after their tier's target above which the API counts as degraded."""
JOBS_SLOW_S, JOBS_STUCK_S = 900.0, 3600.0
METERING_SLOW_S, METERING_STUCK_S = 300.0, 3600.0


class ProcessReport(msgspec.Struct, frozen=True):
    """What an API process says of itself."""

    at: float
    """Unix seconds."""
    not_ready: tuple[str, ...]
    """Names of the checks of /readyz that fail, engines left out."""
    bases: dict[str, bool]
    """Whether an engine of each base takes requests."""


class Served(msgspec.Struct, frozen=True):
    """What all tenants' requests got in the last minutes, in one service tier."""

    requests: int = 0
    failed: int = 0
    first_tokens: int = 0
    first_tokens_in_time: int = 0


class Signals(msgspec.Struct, frozen=True):
    """What the states are derived from."""

    processes: Sequence[ProcessReport] = ()
    """Fresh reports only."""
    served: Sequence[tuple[Terms, Served]] = ()
    """By service tier, with the terms that all plans share."""
    has_database: bool = True
    """Whether the sampling process reaches it."""
    oldest_job_s: float = 0.0
    """How long the first job that could run has waited for a worker."""
    metering_lag_s: float = 0.0
    """How long the first usage event that is not in the ledger has waited."""


def title_of(component: str) -> str:
    """Returns the name that readers see."""
    return TITLES.get(component) or component.removeprefix(BASE)


def worst(*states: State) -> State:
    return max(states, key=ORDER.index, default="operational")


def assess(signals: Signals, bases: Sequence[str] = ()) -> dict[str, State]:
    """Returns the state of each component. `bases`: those known from before, which no process may report."""
    return {
        API: _api(signals),
        **_bases(signals, bases),
        UPLOADS: _uploads(signals),
        CONSOLE: _console(signals),
        BILLING: _billing(signals),
    }


def _api(signals: Signals) -> State:
    processes = [_process(report) for report in signals.processes]
    if not processes:
        return "down"
    state: State = "operational"
    if any(one != "operational" for one in processes):
        state = "down" if all(one == "down" for one in processes) else "degraded"
    return worst(state, *(_served(terms, served) for terms, served in signals.served))


def _process(report: ProcessReport) -> State:
    failing = set(report.not_ready)
    if not any(report.bases.values()) or failing - _DATABASE_CHECKS:
        return "down"
    return "degraded" if failing else "operational"


def _served(terms: Terms, served: Served) -> State:
    found: State = "operational"
    if served.first_tokens >= MIN_REQUESTS:
        late = served.first_tokens - served.first_tokens_in_time
        if late * MILLION > LATE * served.first_tokens:
            found = "degraded"
    if served.requests >= MIN_REQUESTS:
        if served.failed * MILLION > MOSTLY * served.requests:
            return "down"
        # As fast as it pages operators. A tier that promises nothing is held to the share of errors alone.
        rate = burn_rate(terms, served.requests, served.failed)
        if rate is not None and rate > BURN_ALERTS[0].factor:
            found = "degraded"
    return found


def _bases(signals: Signals, known: Sequence[str]) -> dict[str, State]:
    names = sorted({*known, *(name for report in signals.processes for name in report.bases)})
    found: dict[str, State] = {}
    for name in names:
        ready = [report.bases[name] for report in signals.processes if name in report.bases]
        if any(ready):
            found[BASE + name] = "operational" if all(ready) else "degraded"
        else:
            found[BASE + name] = "down"
    return found


def _uploads(signals: Signals) -> State:
    has_disk = any("disk" not in report.not_ready for report in signals.processes)
    if not signals.has_database or not has_disk:
        return "down"
    return _by_wait(signals.oldest_job_s, JOBS_SLOW_S, JOBS_STUCK_S)


def _console(signals: Signals) -> State:
    reached = [not _DATABASE_CHECKS & set(report.not_ready) for report in signals.processes]
    if not any(reached):
        return "down"
    return "operational" if all(reached) else "degraded"


def _billing(signals: Signals) -> State:
    # Usage is kept, and metered once the database is back.
    waiting = _by_wait(signals.metering_lag_s, METERING_SLOW_S, METERING_STUCK_S)
    return waiting if signals.has_database else worst("degraded", waiting)


def _by_wait(seconds: float, slow: float, stuck: float) -> State:
    if seconds > stuck:
        return "down"
    return "degraded" if seconds > slow else "operational"


def under_maintenance(states: Mapping[str, State], components: frozenset[str] | None) -> dict[str, State]:
    """Returns the states while these components are maintained; None: all of them."""
    return {
        name: "maintenance" if components is None or name in components else state
        for name, state in states.items()
    }
