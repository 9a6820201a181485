"""Writes one row of each table that periods delete from, of a given age, and says which ages are left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import text

from db.base import new_id
from db.session import EVERY_TENANT, Database

TENANTS = ("ten_a", "ten_b")
DIGEST = "decode(md5(:id), 'hex') || decode(md5(:id), 'hex')"
MADE = "now() - make_interval(secs => :age * 86400)"

INSERTS: dict[str, tuple[str, ...]] = {
    "stored_responses": (
        f"""INSERT INTO stored_responses (id, tenant_id, project_id, key_id, status, submitted_at, expires_at,
            sealed_body, sealed_input, sealed_output, num_items)
            VALUES (:id, :tenant, 'proj_' || :tenant, 'key', 'completed', {MADE}, now() + interval '1 day',
            '', '', '', 0)""",
        """INSERT INTO response_events (response_id, sequence, tenant_id, fence, sealed)
            VALUES (:id, 1, :tenant, 0, '')""",
    ),
    "conversations": (
        f"""INSERT INTO conversations (id, tenant_id, project_id, created_at, used_at, expires_at,
            sealed_metadata)
            VALUES (:id, :tenant, 'proj_' || :tenant, {MADE}, {MADE}, now() + interval '1 day', '')""",
        """INSERT INTO conversation_items (conversation_id, id, tenant_id, position, sealed)
            VALUES (:id, 'msg', :tenant, 1, '')""",
    ),
    "files": (
        f"""INSERT INTO files (id, tenant_id, purpose, filename, size, sha256, object_key, created_at)
            VALUES (:id, :tenant, 'adapter', 'f', 1, '', 'tenants/' || :tenant || '/files/' || :id,
            {MADE})""",
    ),
    "uploads": (
        f"""INSERT INTO uploads (id, tenant_id, purpose, filename, mime_type, size, status, created_at,
            expires_at)
            VALUES (:id, :tenant, 'adapter', 'f', '', 1, 'cancelled', {MADE}, now())""",
    ),
    "batches": (
        f"""INSERT INTO batches (id, tenant_id, created_by, endpoint, status, input_file_id, input_key,
            input_size,
            created_at, completed_at, expires_at)
            VALUES (:id, :tenant, 'key', '/', 'completed', 'file_0', 'tenants/' || :tenant || '/batches/' ||
            :id, 1,
            {MADE}, {MADE}, now())""",
        "INSERT INTO batch_lines (batch_id, line, tenant_id, submitted_at) VALUES (:id, 1, :tenant, now())",
    ),
    "adapter_versions": (
        "INSERT INTO adapters (id, tenant_id, base, name) VALUES (:id, :tenant, 'sapling', :id)",
        f"""INSERT INTO adapter_versions (adapter_id, version, tenant_id, base_digest, digest, rank, state,
            created_at,
            ready_at, sources)
            VALUES (:id, 1, :tenant, '', 'd', 8, 'ready', {MADE}, {MADE}, CAST(:sources AS jsonb))""",
    ),
    "jobs": (
        f"""INSERT INTO jobs (id, tenant_id, adapter_id, version, status, created_at, finished_at, parameters)
            VALUES (:id, :tenant, 'adp_0', 1, 'succeeded', {MADE}, {MADE}, CAST(:parameters AS jsonb))""",
    ),
    "request_metadata": (
        f"""INSERT INTO request_metadata (tenant_id, submitted_at, request_id, sealed)
            VALUES (:tenant, {MADE}, :id, '')""",
    ),
    "refused_requests": (
        f"""INSERT INTO refused_requests (tenant_id, at, request_id, key_id, project_id, user_id, method,
            route, path,
            model, service_tier, status, code, message, generation_id)
            VALUES (:tenant, {MADE}, :id, '', '', '', 'POST', '', '', '', '', 400, '', '', '')""",
    ),
    "notifications": (
        f"""INSERT INTO notifications (id, tenant_id, type, key, data, created_at)
            VALUES (:id, :tenant, 't', :id, '{{}}', {MADE})""",
        """INSERT INTO deliveries (id, tenant_id, notification_id, recipient, state, give_up_at)
            VALUES (:id, :tenant, :id, 'a@example.com', 'delivered', now())""",
    ),
    "password_resets": (
        f"""INSERT INTO password_resets (digest, tenant_id, user_id, expires_at)
            VALUES ({DIGEST}, :tenant, 'user_' || :tenant, {MADE})""",
    ),
    "invites": (
        f"""INSERT INTO invites (id, tenant_id, email, role, digest, expires_at, accepted_at)
            VALUES (:id, :tenant, 'a@example.com', 'viewer', {DIGEST}, now() + interval '1 day', {MADE})""",
    ),
    "users": (
        f"""INSERT INTO users (id, tenant_id, email, name, role, removed_at)
            VALUES (:id, :tenant, :id || '@example.com', 'Ann', 'viewer', {MADE})""",
    ),
}
"""By table that ages."""

# What is left that still has content, with its age in days.
AGES: dict[str, str] = {
    "stored_responses": "submitted_at",
    "conversations": "used_at",
    "files": "created_at",
    "uploads": "created_at",
    "batches": "completed_at",
    "adapter_versions": "CASE WHEN sources <> '{}' THEN ready_at END",
    "jobs": "CASE WHEN parameters ? 'calibration' THEN finished_at END",
    "request_metadata": "submitted_at",
    "refused_requests": "at",
    "notifications": "created_at",
    "password_resets": "expires_at",
    "invites": "accepted_at",
    "users": "CASE WHEN name <> '' THEN removed_at END",
}
CLASSES: dict[str, str] = {
    "stored_responses": "responses",
    "conversations": "responses",
    "files": "files",
    "uploads": "files",
    "batches": "batches",
    "adapter_versions": "adapter_sources",
    "jobs": "adapter_sources",
    "request_metadata": "requests",
    "refused_requests": "requests",
    "notifications": "notifications",
    "password_resets": "sign_in",
    "invites": "sign_in",
    "users": "former_members",
}


async def make_tenants(database: Database) -> None:
    async with database.write(EVERY_TENANT) as session:
        for tenant in TENANTS:
            for statement in (
                "INSERT INTO tenants (id, name) VALUES (:tenant, :tenant)",
                "INSERT INTO projects (id, tenant_id, name) VALUES ('proj_' || :tenant, :tenant, 'p')",
                """INSERT INTO users (id, tenant_id, email, role)
                   VALUES ('user_' || :tenant, :tenant, :tenant || '@example.com', 'owner')""",
            ):
                await session.execute(text(statement), {"tenant": tenant})


async def add(database: Database, table: str, ages: Sequence[float], tenant: str = "ten_a") -> list[str]:
    """Writes a row of each age in days; returns their ids."""
    values = []
    for age in ages:
        one = new_id("row")
        key = f"tenants/{tenant}/adapters/{one}/sources/s/"
        row: dict[str, Any] = {"id": one, "tenant": tenant, "age": age}
        row["sources"] = json.dumps({name: {"key": key + name} for name in ("a", "b")})
        row["parameters"] = json.dumps({"calibration": {"key": key + "c"}, "dtype": "auto"})
        values.append(row)
    async with database.write(tenant) as session:
        for statement in INSERTS[table]:
            await session.execute(text(statement), values)
    return [row["id"] for row in values]


async def ages_left(database: Database, table: str, tenant: str = "ten_a") -> list[float]:
    """Returns the ages in days of rows that still have content, the youngest first."""
    query = f"SELECT extract(epoch FROM now() - {AGES[table]}) / 86400 FROM {table} WHERE tenant_id = :tenant"
    async with database.read(EVERY_TENANT) as session:
        found = (await session.execute(text(query), {"tenant": tenant})).scalars()
        return sorted(float(age) for age in found if age is not None)


async def scalar(database: Database, query: str, **values: Any) -> Any:
    async with database.read(EVERY_TENANT) as session:
        return (await session.execute(text(query), values)).scalar_one()


async def set_days(database: Database, data_class: str, days: int, tenant: str = "ten_a") -> None:
    async with database.write(tenant) as session:
        await session.execute(
            text(
                "INSERT INTO retention_settings (tenant_id, data_class, days) "
                "VALUES (:tenant, :data_class, :days)"
            ),
            {"tenant": tenant, "data_class": data_class, "days": days},
        )
