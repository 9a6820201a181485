"""Renders the status page, as HTML, JSON and an Atom feed, from the snapshot of `sla.status.board`.

Each is rendered and compressed once for a snapshot, and served from memory. It needs no key, and no part of
it names a tenant, a host, an author or a version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from xml.etree import ElementTree

import msgspec

from admin.web.static_files import File, make_file
from api.site.pages import render
from sla.status.board import STALE_S, Component, Day, ShownIncident, Snapshot, StatusBoard
from sla.status.components import State, title_of

CACHE_CONTROL = "public, max-age=15, stale-if-error=86400"
ATOM = "application/atom+xml"
_NS = "http://www.w3.org/2005/Atom"
STATES: dict[State | None, tuple[str, str]] = {
    "operational": ("Operational", "good"),
    "maintenance": ("Maintenance", "busy"),
    "degraded": ("Degraded", "warn"),
    "down": ("Down", "bad"),
    None: ("Not known", "off"),
}
"""The word, and the tone of its badge."""
_HEADLINES: dict[State | None, str] = {
    "operational": "All systems operational",
    "maintenance": "Maintenance in progress",
    "degraded": "Some systems are degraded",
    "down": "Some systems are down",
    None: "The current state is not known",
}
_SEVERITIES = {"minor": "Minor", "major": "Major", "critical": "Critical"}


@dataclass(frozen=True, slots=True)
class Bar:
    """A day in a component's history."""

    x: int
    state: str
    title: str


class StatusPages:
    """The pages of one process's board."""

    def __init__(self, board: StatusBoard, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._board = board
        self._clock = clock
        self._rendered: dict[tuple[str, str], tuple[int, File]] = {}

    def html(self) -> File:
        return self._once("html", "", lambda: _html(self._board.snapshot, self._clock()))

    def json(self) -> File:
        return self._once("json", "", lambda: _json(self._board.snapshot, self._clock()))

    def atom(self, base_url: str) -> File:
        """`base_url`: of this server, as the client asked for it. Feeds have absolute addresses."""
        return self._once("atom", base_url, lambda: _atom(self._board.snapshot, base_url))

    def _once(self, kind: str, base_url: str, rendered: Callable[[], File]) -> File:
        version = self._board.version
        kept = self._rendered.get((kind, base_url))
        if kept is None or kept[0] != version:
            # Hosts that clients name must not fill the memory.
            self._rendered = {key: found for key, found in self._rendered.items() if found[0] == version}
            if len(self._rendered) > 16:
                self._rendered.clear()
            kept = self._rendered[kind, base_url] = version, rendered()
        return kept[1]


def _html(snapshot: Snapshot, now: datetime) -> File:
    shown = [one for one in snapshot.incidents if one.ended_at is None]
    return _file(
        render(
            "status.html",
            headline=_HEADLINES[_current(snapshot, now)],
            tone=STATES[_current(snapshot, now)][1],
            sampled_at=snapshot.sampled_at,
            history_at=snapshot.history_at,
            stale_minutes=_stale_minutes(snapshot, now),
            components=[(one, *STATES[one.state], _uptime(one), _bars(one)) for one in snapshot.components],
            open_incidents=[one for one in shown if not one.is_maintenance],
            maintenance=[(one, one.has_begun(now)) for one in reversed(shown) if one.is_maintenance],
            past=[one for one in snapshot.incidents if one.ended_at is not None],
            names=lambda one: ", ".join(map(title_of, one.components)),
            severities=_SEVERITIES,
        ).encode(),
        "text/html",
    )


def _current(snapshot: Snapshot, now: datetime) -> State | None:
    """The state of all together. One that is too old says nothing of now."""
    return None if _stale_minutes(snapshot, now) is not None else snapshot.state


def _stale_minutes(snapshot: Snapshot, now: datetime) -> int | None:
    """Returns the age of the snapshot in minutes where it is too old to be called current; None otherwise."""
    known = [at for at in (snapshot.sampled_at, snapshot.history_at) if at is not None]
    if len(known) < 2:
        return 0
    age = (now - min(known)).total_seconds()
    return int(age // 60) if age > STALE_S else None


def _uptime(component: Component) -> str:
    """The share in per cent, cut off: 99.996 % is not 100 %."""
    share = component.uptime
    if share is None:
        return "no samples yet"
    return f"{int(share * 100_000) / 1000:.3f} % uptime"


def _bars(component: Component) -> list[Bar]:
    return [Bar(3 * number, day.state or "none", _words(day)) for number, day in enumerate(component.days)]


def _words(day: Day) -> str:
    when = day.day.strftime("%-d %B %Y")
    if day.state is None:
        return f"{when}: no samples"
    parts = [
        f"{minutes} min {name}"
        for minutes, name in (
            (day.down, "down"),
            (day.degraded, "degraded"),
            (day.maintenance, "maintenance"),
        )
        if minutes
    ]
    return f"{when}: {', '.join(parts) or 'operational'}"


def _json(snapshot: Snapshot, now: datetime) -> File:
    stale = _stale_minutes(snapshot, now)
    body = {
        "status": _current(snapshot, now) or "unknown",
        "sampled_at": _seconds(snapshot.sampled_at),
        "history_at": _seconds(snapshot.history_at),
        "stale": stale is not None,
        "components": [
            {
                "id": one.id,
                "name": one.title,
                "status": one.state or "unknown",
                "uptime": one.uptime,
                "days": [
                    {
                        "date": day.day.isoformat(),
                        "status": day.state or "unknown",
                        "minutes": {
                            "operational": day.operational,
                            "degraded": day.degraded,
                            "down": day.down,
                            "maintenance": day.maintenance,
                        },
                    }
                    for day in one.days
                ],
            }
            for one in snapshot.components
        ],
        "incidents": [_incident(one) for one in snapshot.incidents if not one.is_maintenance],
        "maintenance": [_incident(one) for one in snapshot.incidents if one.is_maintenance],
    }
    return _file(msgspec.json.encode(body), "application/json")


def _incident(one: ShownIncident) -> dict[str, object]:
    return {
        "id": one.id,
        "title": one.title,
        "severity": one.severity,
        "components": list(one.components),
        "began_at": _seconds(one.began_at),
        "planned_until": _seconds(one.planned_until),
        "ended_at": _seconds(one.ended_at),
        "updates": [{"at": _seconds(update.at), "text": update.text} for update in one.updates],
    }


def _atom(snapshot: Snapshot, base_url: str) -> File:
    ElementTree.register_namespace("", _NS)
    feed = ElementTree.Element(f"{{{_NS}}}feed")
    page = f"{base_url}/status"
    _add(feed, "id", page)
    _add(feed, "title", "Status of the service")
    _add(feed, "updated", _stamp(max((_changed(one) for one in snapshot.incidents), default=_EPOCH)))
    _add(feed, "link", rel="self", href=f"{base_url}/status.atom")
    _add(feed, "link", rel="alternate", href=page)
    for one in snapshot.incidents:
        entry = ElementTree.SubElement(feed, f"{{{_NS}}}entry")
        _add(entry, "id", f"urn:rootstock:{one.id}")
        kind = "Maintenance" if one.is_maintenance else _SEVERITIES.get(one.severity, "Incident")
        state = " (resolved)" if one.ended_at is not None else ""
        _add(entry, "title", f"{kind}: {one.title}{state}")
        _add(entry, "published", _stamp(one.began_at if not one.updates else one.updates[-1].at))
        _add(entry, "updated", _stamp(_changed(one)))
        author = ElementTree.SubElement(entry, f"{{{_NS}}}author")
        _add(author, "name", "Service status")
        _add(entry, "link", rel="alternate", href=f"{page}#{one.id}")
        _add(entry, "content", _content(one), type="text")
    body = ElementTree.tostring(feed, encoding="utf-8", xml_declaration=True)
    return _file(body, ATOM)


_EPOCH = datetime.fromtimestamp(0, UTC)


def _content(one: ShownIncident) -> str:
    lines = [f"Affects: {', '.join(map(title_of, one.components))}"] if one.components else []
    if one.planned_until is not None:
        lines.append(f"Planned from {_clock(one.began_at)} to {_clock(one.planned_until)}.")
    lines += [f"{_clock(update.at)}: {update.text}" for update in one.updates]
    if one.ended_at is not None:
        lines.insert(0, f"Resolved {_clock(one.ended_at)}.")
    return "\n\n".join(lines) or "No details yet."


def _changed(one: ShownIncident) -> datetime:
    """When it last changed. What is planned has changed when it was announced: not in the future."""
    moments = [update.at for update in one.updates]
    if one.ended_at is not None:
        moments.append(one.ended_at)
    return max(moments, default=one.began_at)


def _clock(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%-d %B %Y, %H:%M UTC")


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())


def _add(parent: ElementTree.Element, name: str, text: str | None = None, **attributes: str) -> None:
    ElementTree.SubElement(parent, f"{{{_NS}}}{name}", attributes).text = text


def _file(body: bytes, media_type: str) -> File:
    return make_file(body, media_type, CACHE_CONTROL)
