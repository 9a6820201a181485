"""Formats the result of a restore drill: a report for people, and JSON as evidence for auditors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from cli.backup.drill import CHECKS, Evidence
from cli.backup.progress import byte_count

SHOWN = 10
"""Findings of one check that the report for people names."""


def as_json(evidence: Evidence) -> dict[str, Any]:
    """Returns the evidence as a JSON document."""
    return {
        "backup": {
            "id": evidence.backup_id,
            "manifest_sha256": evidence.manifest_sha256,
            "release": evidence.backup_release,
            "moment": _moment(evidence.moment),
            "files": evidence.num_files,
            "bytes": evidence.num_bytes,
            "deleted_while_it_was_made": list(evidence.deleted),
            "notes": list(evidence.notes),
        },
        "drill": {
            "recovered_to": _moment(evidence.until) if evidence.until is not None else None,
            "release": evidence.drill_release,
            "started_at": _moment(evidence.started_at),
            "ended_at": _moment(evidence.ended_at),
            "passed": evidence.passed,
        },
        "checks": [
            {
                "name": result.name,
                "proves": CHECKS[result.name],
                "checked": result.num_checked,
                "wrong": result.num_wrong,
                "findings": result.wrong,
            }
            for result in evidence.results
        ],
    }


def as_text(evidence: Evidence) -> str:
    """Returns the report."""
    took = (evidence.ended_at - evidence.started_at).total_seconds()
    moment = _moment(evidence.until or evidence.moment)
    lines = [
        f"Backup {evidence.backup_id}, as of {moment}: {evidence.num_files} files, "
        f"{byte_count(evidence.num_bytes)}; restored and checked in {took:.1f} s",
        "",
    ]
    for result in evidence.results:
        verdict = f"{result.num_wrong} WRONG" if result.num_wrong else "proven"
        lines.append(f"{result.name:10} {verdict:10} {result.num_checked:>9}  {CHECKS[result.name]}")
        lines += [f"    {finding}" for finding in result.wrong[:SHOWN]]
        if result.num_wrong > SHOWN:
            lines.append(f"    and {result.num_wrong - SHOWN} more")
    if evidence.deleted:
        lines.append(f"{len(evidence.deleted)} objects were deleted while the backup was made")
    lines += [f"not in the backup: {note}" for note in evidence.notes]
    lines += [
        "",
        "The backup restores." if evidence.passed else "The backup does NOT restore to what it should be.",
    ]
    return "\n".join(lines)


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")
