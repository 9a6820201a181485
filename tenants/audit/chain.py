"""Computes the hash chain of the audit log: each entry's digest covers the entry and the previous digest.

Recomputing the chain shows the first entry that was changed, removed, added or reordered. The chain does not
protect against an attacker who also rewrites every later entry: against that, keep a copy of a digest
elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

START = bytes(32)
"""Previous digest of a chain's first entry."""


class Entry(Protocol):
    """The fields that the digest covers: those of `tenants.audit.models.AuditEntry` except `digest`."""

    tenant_id: Any
    seq: Any
    id: Any
    at: Any
    type: Any
    actor: Any
    target_kind: Any
    target_id: Any
    project_id: Any
    details: Any
    previous: Any


def digest_of(entry: Entry) -> bytes:
    """Returns the SHA-256 of the entry's canonical JSON: keys sorted, no spaces, times in UTC to the
    microsecond, the previous digest in hexadecimal, non-ASCII characters escaped.
    """
    at: datetime = entry.at
    fields = {
        "tenant_id": entry.tenant_id,
        "seq": entry.seq,
        "id": entry.id,
        "at": at.astimezone(UTC).isoformat(timespec="microseconds"),
        "type": entry.type,
        "actor": entry.actor,
        "target": {"kind": entry.target_kind, "id": entry.target_id},
        "project_id": entry.project_id,
        "details": entry.details,
        "previous": bytes(entry.previous).hex(),
    }
    written = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(written.encode()).digest()


def checked_details(details: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `details` as a jsonb column returns them, so that the digest is the same before and after
    storage. Raises TypeError for values with more than one JSON form, such as floats.
    """
    return {name: _checked(value) for name, value in details.items()}


def _checked(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return checked_details(value)
    if isinstance(value, list | tuple):
        return [_checked(item) for item in value]
    raise TypeError(
        f"audit log details cannot contain {type(value).__name__}: use str, int, bool, lists or mappings"
    )
