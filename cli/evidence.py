"""Defines `rootstock evidence`: files for an auditor with a manifest of their digests, and the verification
of certificates of deletion.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import CliError, UsageError
from cli.printing import Data, print_rows

if TYPE_CHECKING:
    from cli.service_access import Services
    from tenants.evidence.service import Table

MANIFEST = "manifest.json"
MOST_BYTES = 256 * 1024 * 1024
"""Of a file of certificates."""

evidence_app = typer.Typer(invoke_without_command=True)


@evidence_app.callback()
def evidence(
    context: typer.Context,
    out: Annotated[
        Path | None, typer.Option(help="Directory to make, which only this account can enter.")
    ] = None,
    data: Data = None,
) -> None:
    """Write who has access to what, keys, restore drills, rotated secrets, deletions, and proofs of the audit
    logs.

    Exit status 1 when an audit log was tampered with; the files say which.
    """
    if context.invoked_subcommand is not None:
        return
    if out is None:
        raise UsageError("pass --out DIR, a directory to make, or a command: verify")
    from cli.service_access import call
    from telemetry.release import installed_release
    from tenants.evidence.service import EvidenceCollector

    async def work(services: Services) -> list[Table]:
        return await EvidenceCollector(services.database).collect()

    tables = call(data, work)
    try:
        files = write_evidence(out, tables, installed_release(), datetime.now(UTC))
    except OSError as error:
        raise CliError(f"--out {out}: {error.strerror}: name a directory that does not exist") from error
    print_rows(("FILE", "ROWS", "SHA-256"), [(name, str(num), digest) for name, num, digest in files])
    broken = [str(row[0]) for table in tables if table.name == "audit-chains" for row in table.rows if row[5]]
    if broken:
        raise CliError(
            f"the audit log was tampered with: {', '.join(broken)}; audit-chains.csv has the entry"
        )


@evidence_app.command("verify")
def verify_certificates(
    files: Annotated[
        list[Path],
        typer.Argument(help="Certificates of deletion, or deletion-certificates.json of an export."),
    ],
    key: Annotated[
        str | None,
        typer.Option(
            metavar="HEX",
            help="Public key that they must be signed with. Default: the one that each of them states.",
        ),
    ] = None,
) -> None:
    """Verify certificates of deletion without a connection to the service: digest, signature, sums, ids,
    chain.

    Exit status 1 for the first that is not whole.
    """
    from retention.certificates import InvalidCertificate, verify, verify_chain

    try:
        public_key = None if key is None else bytes.fromhex(key)
    except ValueError as error:
        raise UsageError(f"--key {key!r} is not hexadecimal") from error
    by_organization: dict[str, list[Any]] = {}
    rows = []
    for path in files:
        for certificate in _certificates_in(path):
            try:
                statement = verify(certificate, public_key)
            except InvalidCertificate as error:
                raise CliError(f"{path}: {error}") from error
            by_organization.setdefault(statement["organization_id"], []).append(certificate)
            numbers = (f"{statement['rows']}", f"{statement['objects']}")
            identity = (statement["organization_id"], f"{statement['number']}", statement["id"])
            rows.append((*identity, statement["cause"], *numbers, certificate["signature"]["key_id"]))
    for organization, found in by_organization.items():
        in_order = sorted(found, key=lambda one: int(one["statement"]["number"]))
        try:
            verify_chain(in_order)
        except InvalidCertificate as error:
            raise CliError(f"{organization}: {error}") from error
    print_rows(("ORGANIZATION", "NUMBER", "CERTIFICATE", "CAUSE", "ROWS", "OBJECTS", "KEY"), rows)
    if key is None:
        print("\nThe keys are those that the certificates state: compare them, or pass --key.")


def _certificates_in(path: Path) -> list[Any]:
    """Returns the certificates of a file: one, a list, or rows of an export. Raises CliError."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise CliError(f"{path} has more than {MOST_BYTES} bytes: split it")
        read = json.loads(path.read_bytes())
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise CliError(f"{path} is not JSON: {error}") from error
    found = read if isinstance(read, list) else [read]
    try:
        return [
            json.loads(one["certificate"]) if isinstance(one, dict) and "certificate" in one else one
            for one in found
        ]
    except (ValueError, TypeError) as error:
        raise CliError(f"{path} has no certificates: {error}") from error


def write_evidence(
    out: Path, tables: Sequence[Table], release: str, now: datetime
) -> list[tuple[str, int, str]]:
    """Writes each table as CSV and as JSON into a new directory, `manifest.json` with their digests, and
    `SHA256SUMS` with all. Returns names, numbers of rows and digests. Raises OSError.
    """
    from engine.journal.records import write_private

    out.mkdir(mode=0o700, parents=True)
    files = []
    for table in tables:
        for name, content in ((f"{table.name}.csv", _csv(table)), (f"{table.name}.json", _json(table))):
            write_private(out / name, [content])
            files.append((name, len(table.rows), hashlib.sha256(content).hexdigest()))
    manifest = {
        "created_at": _moment(now),
        "release": release,
        "files": [{"name": name, "rows": num, "sha256": digest} for name, num, digest in files],
    }
    content = json.dumps(manifest, indent=2).encode() + b"\n"
    write_private(out / MANIFEST, [content])
    listed = [*files, (MANIFEST, len(files), hashlib.sha256(content).hexdigest())]
    sums = "".join(f"{digest}  {name}\n" for name, _, digest in listed)
    write_private(out / "SHA256SUMS", [sums.encode()])
    return listed


def _csv(table: Table) -> bytes:
    from billing.reports.csv_form import CsvForm
    from billing.reports.tables import Column

    form = CsvForm([Column(name, _kind(name)) for name in table.columns])
    return form.begin() + form.add(table.rows) + form.end()


def _kind(name: str) -> Any:
    """Returns the kind of a column by its name: the form escapes texts, and writes moments in UTC."""
    if name in ("age_days", "entries", "broken_from_entry", "number", "rows", "objects"):
        return "integer"
    return "moment" if name.endswith(("_at", "_moment")) or name == "at" else "text"


def _json(table: Table) -> bytes:
    rows = [
        {
            name: _moment(cell) if isinstance(cell, datetime) else cell
            for name, cell in zip(table.columns, row, strict=True)
        }
        for row in table.rows
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False).encode() + b"\n"


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
