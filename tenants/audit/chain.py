"""How entries of the audit log hang together: each one's digest covers all of it and the digest before.

Changing, dropping, adding or reordering entries breaks the chain where it begins, for anyone who computes it
again. It proves nothing against whoever rewrites everything that follows too: against that, keep a digest
elsewhere. Knows no storage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

START = bytes(32)
"""What the first entry of a chain follows."""


class Entry(Protocol):
    """What the digest covers: `tenants.audit.models.AuditEntry` but for its `digest`."""

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
    """SHA-256 over the entry's canonical JSON: its fields by name, in order, without spaces; times in UTC to
    the microsecond, the previous digest in hexadecimal, letters beyond ASCII escaped.
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
    """`details` as they come back from a jsonb column: the digest must be the same before and after. Raises
    TypeError for what has more than one way to be written, such as fractions.
    """
    return {name: _checked(value) for name, value in details.items()}


def _checked(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return checked_details(value)
    if isinstance(value, list | tuple):
        return [_checked(item) for item in value]
    raise TypeError(f"the audit log takes no {type(value).__name__}: texts, whole numbers, lists, mappings")
