"""Renders a reconciliation as text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime

from billing.reconciliation.differences import CHECKS, OnItsWay, Report

COLUMNS = ("check", "tenant_id", "what", "at", "expected", "found", "difference")
_RISKY = ("=", "+", "-", "@", "\t", "\r")


def as_json(report: Report) -> str:
    document = {
        "id": report.id,
        "start": report.start.isoformat(),
        "end": report.end.isoformat(),
        "started_at": report.started_at.isoformat(),
        "ended_at": report.ended_at.isoformat(),
        "balanced": report.balanced,
        "num_differences": report.num_differences,
        "checks": {
            check: {
                "differences": outcome.differences,
                "why_not": outcome.why_not or None,
                "on_its_way": outcome.on_its_way,
            }
            for check, outcome in report.outcomes.items()
        },
        "differences": [
            {
                "check": one.check,
                "tenant_id": one.tenant_id or None,
                "what": one.what,
                "at": _moment(one.at) or None,
                "expected": one.expected,
                "found": one.found,
            }
            for one in report.differences
        ],
        "on_their_way": [
            {
                "tenant_id": one.tenant_id,
                "what": one.what,
                "since": one.since.isoformat(),
                "age_seconds": _age(report, one),
            }
            for one in report.on_their_way
        ],
    }
    return json.dumps(document, indent=2)


def as_csv(report: Report) -> str:
    """Returns a line for each difference, safe to open in a spreadsheet."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for one in report.differences:
        what = f"'{one.what}" if one.what.startswith(_RISKY) else one.what
        at, difference = _moment(one.at), one.found - one.expected
        writer.writerow((one.check, one.tenant_id, what, at, one.expected, one.found, difference))
    return out.getvalue()


def as_text(report: Report) -> str:
    last = f"{report.start:%Y-%m-%d} to {report.end:%Y-%m-%d}"
    lines = [f"{report.id}: {last}, compared at {report.ended_at:%Y-%m-%d %H:%M} UTC", ""]
    width = max(map(len, CHECKS))
    for check, outcome in report.outcomes.items():
        if outcome.why_not:
            state = f"not compared: {outcome.why_not}"
        elif outcome.differences:
            state = f"{outcome.differences} differences"
        else:
            state = f"equal: {CHECKS.get(check, '')}"
        if outcome.on_its_way:
            state += f"; {outcome.on_its_way} on their way"
        lines.append(f"{check:<{width}}  {state}")
    if report.differences:
        lines.append("")
    lines += [
        f"{one.check}: {one.tenant_id or '-'} {_moment(one.at)} {one.what}: "
        f"expected {one.expected}, found {one.found}"
        for one in report.differences
    ]
    if report.on_their_way:
        lines.append("")
    lines += [
        f"on its way for {_age(report, one)} s: {one.tenant_id} {one.what}" for one in report.on_their_way
    ]
    lines += ["", f"{report.verdict}."]
    return "\n".join(lines)


def _age(report: Report, one: OnItsWay) -> int:
    """Returns the seconds for which it had waited when it was found."""
    return max(0, round((report.started_at - one.since).total_seconds()))


def _moment(at: datetime | None) -> str:
    return "" if at is None else at.isoformat()
