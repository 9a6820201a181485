"""Builds certificates of deletion as JSON, and verifies them without a database.

A certificate is `statement`, its SHA-256 and an Ed25519 signature of the statement's canonical JSON (keys
sorted, no spaces, ASCII). The statement has the SHA-256 of the organization's certificate before it:
certificates are a chain.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from retention.signing import ALGORITHM, CertificateSigner, is_signed, key_id
from tenants.retention.classes import RetentionBounds, kept_records
from tenants.retention.digests import START, extended
from tenants.retention.models import Deletion, DeletionCount

CAUSES = {
    "periods": "Retention periods of the organization",
    "request": "Request to delete",
    "organization": "Deletion of the whole organization",
}

FORMAT = "rootstock.deletion_certificate.v1"
FIRST_PREVIOUS = bytes(32)
"""Stands for the certificate before an organization's first."""


class InvalidCertificate(ValueError):
    """The file is no certificate, or was changed."""


def statement_of(
    certificate_id: str,
    tenant_id: str,
    place: tuple[int, bytes],
    deletions: Sequence[Deletion],
    counts: Sequence[DeletionCount],
    issued_at: datetime,
    bounds: RetentionBounds,
) -> dict[str, Any]:
    """Returns the statement about deletions of one cause. `place`: the number, and the digest before it."""
    number, previous = place
    ended_at = max(deletion.ended_at or issued_at for deletion in deletions)
    by_deletion: dict[str, list[DeletionCount]] = {}
    for count in counts:
        by_deletion.setdefault(count.deletion_id, []).append(count)
    # Objects are deleted after the rows, until the certificate is issued.
    until = max(ended_at, issued_at) + timedelta(days=bounds.backup_days)
    said: dict[str, Any] = {
        "format": FORMAT,
        "id": certificate_id,
        "number": number,
        "organization_id": tenant_id,
        "cause": deletions[0].cause,
        "issued_at": _moment(issued_at),
        "rows": sum(count.num_rows for count in counts),
        "objects": sum(count.num_objects for count in counts),
        "deletions": [_deletion(one, by_deletion.get(one.id, [])) for one in deletions],
        "backups_hold_it_until": _moment(until),
        "previous_sha256": previous.hex(),
    }
    if deletions[0].cause == "organization":
        said["kept"] = [
            {"what": kept.title, "why": kept.why, "period": kept.period}
            for kept in kept_records(bounds.books_years)
            if kept.outlives_organization
        ] + [
            {
                "what": "Audit log",
                "why": "It proves who changed what, this deletion too.",
                "period": f"{bounds.books_years} years",
            }
        ]
    return said


def signed(statement: Mapping[str, Any], signer: CertificateSigner) -> tuple[dict[str, Any], bytes]:
    """Returns the certificate, and the SHA-256 of its statement."""
    content = canonical(statement)
    digest = hashlib.sha256(content).digest()
    signature = {
        "algorithm": ALGORITHM,
        "key_id": key_id(signer.public_key),
        "public_key": signer.public_key.hex(),
        "value": signer.sign(content).hex(),
    }
    return {"statement": dict(statement), "sha256": digest.hex(), "signature": signature}, digest


def canonical(statement: Mapping[str, Any]) -> bytes:
    """Returns the bytes that are signed."""
    return json.dumps(
        statement, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def verify(certificate: Any, public_key: bytes | None = None) -> Mapping[str, Any]:
    """Returns the statement of a certificate that is whole. `public_key`: the one it must be signed with;
    None trusts the certificate's own.

    Raises InvalidCertificate naming what is wrong.
    """
    try:
        statement, signature = certificate["statement"], certificate["signature"]
        content = canonical(statement)
        stated_key, value = bytes.fromhex(signature["public_key"]), bytes.fromhex(signature["value"])
        tables = [table for deletion in statement["deletions"] for table in deletion["tables"]]
        sums = [sum(table[name] for table in tables) for name in ("rows", "objects")]
        is_known = statement["format"] == FORMAT and signature["algorithm"] == ALGORITHM
        same_digest = certificate["sha256"] == hashlib.sha256(content).hexdigest()
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidCertificate(f"this is no certificate of deletion: {error!r}") from error
    if not is_known:
        raise InvalidCertificate("the certificate has a format that this release does not know")
    if not same_digest:
        raise InvalidCertificate("the statement was changed: its SHA-256 is another one")
    if public_key is not None and stated_key != public_key:
        raise InvalidCertificate(
            f"the certificate is signed with the key {key_id(stated_key)}, not with {key_id(public_key)}"
        )
    try:
        if not is_signed(content, value, stated_key):
            raise InvalidCertificate("the signature is not that of the statement")
    except ValueError as error:
        if isinstance(error, InvalidCertificate):
            raise
        raise InvalidCertificate(f"the public key is none: {error}") from error
    if sums != [statement["rows"], statement["objects"]]:
        raise InvalidCertificate("the sums of rows and objects are not those of the tables")
    for table in tables:
        if table["ids"] is not None and table["ids_sha256"] != extended(START, table["ids"]).hex():
            raise InvalidCertificate(f"the digest of the ids of {table['table']} is another one")
    found: Mapping[str, Any] = statement
    return found


def verify_chain(certificates: Sequence[Any]) -> None:
    """Checks that certificates of one organization, in order of their numbers, follow each other without a
    gap; the first may be any. Raises InvalidCertificate.
    """
    for earlier, later in itertools.pairwise(certificates):
        before, after = earlier["statement"], later["statement"]
        if after["number"] != before["number"] + 1:
            raise InvalidCertificate(f"certificate {before['number'] + 1} is missing")
        if after["previous_sha256"] != earlier["sha256"]:
            raise InvalidCertificate(f"certificate {after['number']} does not follow {before['number']}")


def _deletion(deletion: Deletion, counts: Sequence[DeletionCount]) -> dict[str, Any]:
    target = None
    if deletion.object_id is not None:
        target = {"kind": deletion.object_kind, "id": deletion.object_id}
    return {
        "id": deletion.id,
        "object": target,
        "requested_by": dict(deletion.requested_by),
        "periods_days": dict(deletion.periods),
        "started_at": _moment(deletion.started_at),
        "ended_at": _moment(deletion.ended_at),
        "tables": [_table(count) for count in counts],
    }


def _table(count: DeletionCount) -> dict[str, Any]:
    return {
        "table": count.table_name,
        "data_class": count.data_class,
        "rows": count.num_rows,
        "objects": count.num_objects,
        "oldest": _moment(count.oldest),
        "newest": _moment(count.newest),
        "ids": count.ids,
        "ids_sha256": None if count.ids_digest is None else bytes(count.ids_digest).hex(),
    }


def _moment(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
