"""Records restore drills in the service's audit log, which is the evidence that they were done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from cli.errors import CliError
from cli.service_access import setting
from db.session import Database
from tenants.actors import OPERATOR
from tenants.audit.service import OPERATOR_CHAIN, AuditEntry, AuditLog
from tenants.evidence.service import DRILLED


def read_evidence(path: Path) -> dict[str, Any]:
    """Returns a drill's result from the file that `backup drill --evidence` wrote. Raises `CliError`."""
    try:
        found = json.loads(path.read_text())
        details_of(found)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CliError(
            f"{path} is not the result of a drill ({error}): name a file that `rootstock backup drill "
            "--evidence` wrote"
        ) from None
    return dict(found)


def details_of(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the audit log keeps of a drill's result. Raises KeyError, TypeError, ValueError."""
    backup, drill = evidence["backup"], evidence["drill"]
    moments = {
        "moment": drill["recovered_to"] or backup["moment"],
        "started_at": drill["started_at"],
        "ended_at": drill["ended_at"],
    }
    for moment in moments.values():
        datetime.fromisoformat(moment)
    written = json.dumps(evidence, sort_keys=True).encode()
    return {
        **moments,
        "passed": bool(drill["passed"]),
        "release": str(drill["release"]),
        "manifest_sha256": str(backup["manifest_sha256"]),
        "evidence_sha256": hashlib.sha256(written).hexdigest(),
        "checks": {
            str(check["name"]): {"checked": int(check["checked"]), "wrong": int(check["wrong"])}
            for check in evidence["checks"]
        },
    }


async def record_drill(environment: Mapping[str, str], evidence: Mapping[str, Any]) -> AuditEntry:
    """Records the result of a drill, passed or not. Raises `CliError`, DatabaseUnavailable."""
    database = Database(setting(environment, "ROOTSTOCK_DB_URL"))
    try:
        async with database.write(OPERATOR_CHAIN) as session:
            target = ("backup", str(evidence["backup"]["id"]))
            return await AuditLog.record(
                session, OPERATOR_CHAIN, OPERATOR, DRILLED, target, details_of(evidence)
            )
    finally:
        await database.close()
