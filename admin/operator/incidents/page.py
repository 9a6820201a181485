"""Formats incidents and error budget burn rates for their pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from admin import formatting
from admin.badge import Badge
from admin.web.form_errors import FieldError
from sla.incidents.burning import Burn
from sla.incidents.models import Incident
from sla.objectives import WINDOWS

PAGE = 50
SEVERITY_CHOICES = (
    ("minor", "Minor: few requests affected"),
    ("major", "Major: many requests are slow or fail"),
    ("critical", "Critical: no requests are served"),
)
_SEVERITIES = {
    "minor": Badge("Minor", "off"),
    "major": Badge("Major", "warn"),
    "critical": Badge("Critical", "bad"),
}
_ALERTS = {"page": Badge("Burning fast", "bad"), "ticket": Badge("Burning", "warn")}
_CLASSES = {"priority": "Priority", "default": "Default", "flex": "Flex"}


@dataclass(frozen=True)
class IncidentRow:
    incident: Incident
    severity: Badge
    state: Badge
    lasted: str


@dataclass(frozen=True)
class BurnRow:
    title: str
    state: Badge
    rates: list[tuple[str, str]]
    """How many times faster than the month allows, and of how many requests how many failed."""


def row(incident: Incident, now: datetime) -> IncidentRow:
    seconds = ((incident.ended_at or now) - incident.began_at).total_seconds()
    return IncidentRow(
        incident,
        _SEVERITIES[incident.severity],
        _state(incident, now),
        formatting.duration(max(0.0, seconds)),
    )


def _state(incident: Incident, now: datetime) -> Badge:
    if incident.ended_at is not None:
        return Badge("Resolved", "off")
    if incident.planned_until is None:
        return Badge("Open", "busy")
    return Badge("Planned", "off") if incident.began_at > now else Badge("Maintenance", "busy")


COMPONENT = "component:"
"""Prefix of the checkboxes of components."""


def chosen(form: Mapping[str, str]) -> list[str]:
    """Returns the components that a form has ticked."""
    return [name.removeprefix(COMPONENT) for name in form if name.startswith(COMPONENT)]


def burn_rows(burns: Sequence[Burn]) -> list[BurnRow]:
    rows = []
    for burn in burns:
        promised = any(rate is not None for *_, rate in burn.windows)
        quiet = not any(requests for _, requests, _, _ in burn.windows)
        calm = Badge("Within budget", "good") if promised else Badge("No target", "off")
        calm = Badge("No requests", "off") if quiet else calm
        rates = [
            (
                formatting.NOTHING if rate is None else f"{rate:,.3g} ×",
                f"{failed:,} of {requests:,}" if requests else "",
            )
            for _, requests, failed, rate in burn.windows
        ]
        title = _CLASSES.get(burn.service_tier, burn.service_tier)
        rows.append(BurnRow(title, _ALERTS.get(burn.alert or "", calm), rates))
    return rows


def _width(minutes: int) -> str:
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 1440 else f"{minutes // 1440} d"


WIDTHS = [_width(minutes) for minutes in WINDOWS]


def read_moment(field: str, written: str) -> datetime | None:
    """None where nothing is written. Raises Refused."""
    if not written.strip():
        return None
    try:
        return datetime.strptime(written.strip(), "%Y-%m-%dT%H:%M").replace(tzinfo=UTC)
    except ValueError:
        raise FieldError(field, "Enter a time such as 2026-12-31T23:59.") from None
