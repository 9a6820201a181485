"""Makes the tables of an evidence export: who has access, keys, drills, rotations, proofs of audit logs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from db.session import EVERY_TENANT, Database
from tenants.audit.service import AuditLog
from tenants.evidence.repository import EvidenceRepository
from tenants.repository import TenantDirectory
from tenants.retention.models import DeletionCertificate
from tenants.retention.repository import RetentionInventory

DRILLED = "backup.drilled"
"""Type of the audit log's entry of a restore drill."""
CERTIFICATE_KEY_USED = "certificate_key.first_used"
"""Type of the audit log's entry of a key that signs certificates of deletion."""
ROTATION_EVENTS = ("secret.rotation_begun", "secret.resealed", "secret.rotated")

ACCESS = (
    *("organization_id", "organization", "user_id", "email", "name", "role", "state", "password"),
    *("second_factor", "identity_providers", "provisioned_by_scim", "created_at", "last_sign_in_at"),
    "last_sign_in_by",
)
PROJECT_ACCESS = (*("organization_id", "project_id", "project", "member_id", "member", "role", "added_at"),)
KEYS = (
    *("organization_id", "organization", "key_id", "prefix", "name", "kind", "project_id", "owner_id"),
    *("scopes", "created_at", "age_days", "last_used_at", "expires_at"),
)
DRILLS = (
    *("recorded_at", "backup_id", "passed", "backup_moment", "started_at", "ended_at", "release"),
    *("manifest_sha256", "checks_wrong", "recorded_by", "audit_entry"),
)
ROTATIONS = ("at", "secret", "event", "details", "recorded_by", "audit_entry")
CERTIFICATES = (
    *("organization_id", "number", "certificate_id", "cause", "object_id", "rows", "objects", "issued_at"),
    *("sha256", "key_id", "certificate"),
)
HOLDS = (
    *("organization_id", "hold_id", "held", "reason", "placed_by", "placed_at", "lifted_by", "lifted_at"),
)
CERTIFICATE_KEYS = ("key_id", "algorithm", "public_key", "first_used_at", "audit_entry")
CHAINS = ("organization_id", "organization", "entries", "head_sha256", "verified", "broken_from_entry")

Cell = str | int | datetime | None


@dataclass(frozen=True, slots=True)
class Table:
    """One file of an export."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


class EvidenceCollector:
    """Collects the evidence of one service."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def collect(self) -> list[Table]:
        """Returns all tables, as they are now."""
        async with self._database.read(EVERY_TENANT) as session:
            evidence = EvidenceRepository(session)
            members, places, keys = (
                await evidence.members(),
                await evidence.project_members(),
                await evidence.keys(),
            )
            drills = await evidence.service_entries([DRILLED])
            rotations = await evidence.service_entries(ROTATION_EVENTS)
            keys_used = await evidence.service_entries([CERTIFICATE_KEY_USED])
            inventory = RetentionInventory(session)
            certificates, holds = await inventory.certificates(), await inventory.holds()
        return [
            Table("access", ACCESS, [(*row,) for row in members]),
            Table("project-access", PROJECT_ACCESS, [(*row,) for row in places]),
            Table("keys", KEYS, [(*row,) for row in keys]),
            Table("restore-drills", DRILLS, [_drill(entry) for entry in drills]),
            Table("secret-rotations", ROTATIONS, [_rotation(entry) for entry in rotations]),
            Table("deletion-certificates", CERTIFICATES, [_certificate(row) for row in certificates]),
            Table("certificate-keys", CERTIFICATE_KEYS, [_certificate_key(entry) for entry in keys_used]),
            Table("legal-holds", HOLDS, [(*row,) for row in holds]),
            Table("audit-chains", CHAINS, await self._proofs()),
        ]

    async def _proofs(self) -> list[tuple[Cell, ...]]:
        log = AuditLog(self._database)
        proofs = [await log.prove(tenant_id) for tenant_id in await log.chains()]
        async with self._database.read(EVERY_TENANT) as session:
            names = await TenantDirectory(session).names([proof.tenant_id for proof in proofs])
        return [
            (
                proof.tenant_id,
                names.get(proof.tenant_id, "the service itself"),
                proof.num_entries,
                proof.head.hex(),
                "yes" if proof.broken_from is None else "no",
                proof.broken_from,
            )
            for proof in proofs
        ]


def _certificate(row: DeletionCertificate) -> tuple[Cell, ...]:
    return (
        *(row.tenant_id, row.number, row.id, row.cause, row.object_id, row.num_rows, row.num_objects),
        *(row.issued_at, bytes(row.digest).hex(), row.document["signature"]["key_id"]),
        json.dumps(row.document),
    )


def _certificate_key(entry: Any) -> tuple[Cell, ...]:
    said = entry.details
    return (entry.target_id, said["algorithm"], said["public_key"], entry.at, entry.id)


def _drill(entry: Any) -> tuple[Cell, ...]:
    found = entry.details
    wrong = [f"{name}: {check['wrong']}" for name, check in sorted(found["checks"].items()) if check["wrong"]]
    return (
        entry.at,
        entry.target_id,
        "yes" if found["passed"] else "no",
        datetime.fromisoformat(found["moment"]).astimezone(UTC),
        datetime.fromisoformat(found["started_at"]).astimezone(UTC),
        datetime.fromisoformat(found["ended_at"]).astimezone(UTC),
        found["release"],
        found["manifest_sha256"],
        ", ".join(wrong),
        _who(entry.actor),
        entry.id,
    )


def _rotation(entry: Any) -> tuple[Cell, ...]:
    details = ", ".join(f"{name} {value}" for name, value in sorted(entry.details.items()))
    event = entry.type.removeprefix("secret.")
    return entry.at, entry.target_id, event, details, _who(entry.actor), entry.id


def _who(actor: dict[str, Any]) -> str:
    return str(actor.get("email") or actor["id"])
