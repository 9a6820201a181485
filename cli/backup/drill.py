"""Restores a backup into a scratch place and proves that what it holds is whole and agrees with itself.

Every check names what it found wrong. The scratch place has a PostgreSQL of its own, and is removed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from adapters.storage import DigestMismatch, ObjectNotFound, ObjectStore
from billing.invoices.verification import InvoiceVerification
from billing.reconciliation.differences import Difference
from billing.reconciliation.ledger import compare_prices, compare_reports, compare_rollups
from cli.backup.archive import ARTIFACTS, Backup
from cli.backup.database import open_database
from cli.backup.point_in_time import PointInTime
from cli.backup.repository import BackupRepository
from cli.backup.restoring import Target, new_data_directory
from cli.display import Display
from db.session import Database
from engine.lora.artifact import SUFFIX
from telemetry.release import installed_release
from tenants.audit.service import AuditLog

MOST_NAMED = 100
"""Findings of one check that are named; all are counted."""
CHECKS = {
    "rows": "every table has the rows that the backup's snapshot had",
    "ledger": "sums by minute, hour and day equal the ledger's rows; usage and costs APIs report them",
    "prices": "ledger rows carry the prices of the price list",
    "invoices": "invoices equal their lines and the ledger, priced again; their numbers have no gap",
    "audit": "the hash chain of every audit log is intact",
    "objects": "every object that the database names is there, with its digest",
    "artifacts": "every packed adapter that serves is there, with its digest",
}
"""What each check proves when it finds nothing, in the order in which they run."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check looked at, and what it found wrong."""

    name: str
    num_checked: int
    """Rows, invoices, chains or objects."""
    num_wrong: int
    wrong: list[str]
    """The first of them."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The result of a drill."""

    backup_id: str
    manifest_sha256: str
    backup_release: str
    moment: datetime
    """The time up to which the backup has every acknowledged request."""
    until: datetime | None
    """The later moment that the database was recovered to."""
    drill_release: str
    started_at: datetime
    ended_at: datetime
    num_files: int
    num_bytes: int
    deleted: Sequence[str]
    """Objects that were deleted while the backup was made."""
    notes: Sequence[str]
    results: Sequence[CheckResult]

    @property
    def passed(self) -> bool:
        return not any(result.num_wrong for result in self.results)


async def run_drill(
    backup: Backup, scratch: Path | None, display: Display, point: PointInTime | None = None
) -> Evidence:
    """Restores the backup below `scratch` (default: the system's temporary directory) and checks it. Raises
    `CliError` when it cannot be restored. Call it on the main thread.
    """
    started_at = datetime.now(UTC)
    with tempfile.TemporaryDirectory(prefix="rootstock-drill-", dir=scratch) as folder:
        place = Path(folder) / "data"
        async with new_data_directory(backup, place, display, point, ephemeral=True) as target:
            results = await check(backup, target, display, point)
    manifest = backup.manifest
    return Evidence(
        backup_id=manifest.id,
        manifest_sha256=backup.manifest_sha256,
        backup_release=manifest.release,
        moment=manifest.moment,
        until=point.moment if point is not None else None,
        drill_release=installed_release(),
        started_at=started_at,
        ended_at=datetime.now(UTC),
        num_files=len(manifest.files),
        num_bytes=backup.size,
        deleted=manifest.deleted,
        notes=manifest.notes,
        results=results,
    )


async def check(
    backup: Backup, target: Target, display: Display, point: PointInTime | None = None
) -> list[CheckResult]:
    """Returns the result of every check on a restored backup. Raises `CliError`, DatabaseUnavailable."""
    database = Database(target.serving_url, statement_timeout=600)
    checks: dict[str, Callable[[], Awaitable[CheckResult]]] = {
        "rows": lambda: _rows(backup),
        "ledger": lambda: _ledger(database, target),
        "prices": lambda: _prices(database, target),
        "invoices": lambda: _invoices(database, backup.manifest.rows.get("invoices", 0)),
        "audit": lambda: _audit(database),
        "objects": lambda: _objects(backup, target),
        "artifacts": lambda: _artifacts(backup, target),
    }
    if point is not None:  # the snapshot's rows are those of an earlier moment
        del checks["rows"]
    results = []
    try:
        for name, run in checks.items():
            with display.step(f"Check {name}") as step:
                result = await run()
                step.detail(f"{result.num_checked} checked, {result.num_wrong} wrong")
            results.append(result)
    finally:
        await database.close()
    return results


def _result(name: str, num_checked: int, wrong: Sequence[str]) -> CheckResult:
    return CheckResult(name, num_checked, len(wrong), [*wrong[:MOST_NAMED]])


async def _rows(backup: Backup) -> CheckResult:
    """The restore has compared them: a difference would have ended it."""
    return _result("rows", sum(backup.manifest.rows.values()), [])


async def _ledger(database: Database, target: Target) -> CheckResult:
    num_rows, start, end = await _days(target)
    wrong = await compare_rollups(database, start, end)
    wrong += await compare_reports(database, start, end)
    return _result("ledger", num_rows, [*map(_said, wrong)])


async def _prices(database: Database, target: Target) -> CheckResult:
    num_rows, start, end = await _days(target)
    wrong = await compare_prices(database, start, end)
    return _result("prices", num_rows, [*map(_said, wrong)])


async def _days(target: Target) -> tuple[int, datetime, datetime]:
    """Returns the number of the ledger's rows, and the whole UTC days that they and their sums are in."""
    async with open_database(target.owner_url) as connection:
        num_rows, first, last = await BackupRepository(connection).usage_span()
    start, end = (
        (moment or datetime.now(UTC)).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        for moment in (first, last)
    )
    return num_rows, start, end + timedelta(days=1)


def _said(difference: Difference) -> str:
    at = f" at {difference.at:%Y-%m-%d %H:%M}" if difference.at is not None else ""
    return (
        f"{difference.tenant_id or 'all tenants'}: {difference.what}{at}: "
        f"expected {difference.expected}, found {difference.found}"
    )


async def _invoices(database: Database, num_invoices: int) -> CheckResult:
    wrong = [
        f"{one.tenant_id}: {one.invoice}: {one.what}: expected {one.expected}, found {one.found}"
        for one in await InvoiceVerification(database).verify()
    ]
    return _result("invoices", num_invoices, wrong)


async def _audit(database: Database) -> CheckResult:
    log = AuditLog(database)
    chains = await log.chains()
    wrong = []
    for tenant_id in chains:
        broken = await log.verify(tenant_id)
        if broken is not None:
            wrong.append(f"{tenant_id}: entry {broken} of the audit log was changed, or is missing")
    return _result("audit", len(chains), wrong)


async def _objects(backup: Backup, target: Target) -> CheckResult:
    """Reads every object that the restored database names back from the restored store."""
    manifest, wrong = backup.manifest, []
    async with open_database(target.owner_url) as connection:
        named = await BackupRepository(connection).named_objects()
    for key in manifest.deleted:
        named.pop(key, None)
    for key, sha256 in sorted(named.items()):
        why = manifest.unavailable.get(key) or await _why_wrong(target.store, key, sha256)
        if why:
            wrong.append(f"{key}: {why}")
    return _result("objects", len(named), wrong)


async def _why_wrong(store: ObjectStore, key: str, sha256: str) -> str:
    """Returns what is wrong with an object; empty if it is there with the digest that its row has."""
    try:
        async for _ in store.get(key):
            pass
    except ObjectNotFound:
        return "it is not there"
    except DigestMismatch as error:
        return str(error)
    found = await store.head(key)
    if found is not None and sha256 and found.sha256 != sha256:
        return f"its SHA-256 is {found.sha256}, its row has {sha256}"
    return ""


async def _artifacts(backup: Backup, target: Target) -> CheckResult:
    files, wrong = backup.manifest.files, []
    packed = {name: content for name, content in files.items() if name.startswith(ARTIFACTS)}
    for name, content in sorted(packed.items()):
        digest = Path(name).name.removesuffix(SUFFIX)
        if name.endswith(SUFFIX) and content.sha256 != digest:
            wrong.append(f"{name}: its SHA-256 is {content.sha256}")
        elif not (target.artifacts / name.removeprefix(ARTIFACTS)).exists():
            wrong.append(f"{name}: it is not there")
    unavailable = backup.manifest.unavailable
    missing = [f"{name}: {why}" for name, why in unavailable.items() if name.startswith(ARTIFACTS)]
    return _result("artifacts", len(packed) + len(missing), wrong + missing)
