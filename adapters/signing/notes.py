"""Records what becomes of a version's signature, as parts of transactions in which its version is locked."""

from __future__ import annotations

from datetime import UTC, datetime

from adapters import events
from adapters.models import AdapterVersion
from adapters.signing.repository import SignatureRepository
from adapters.signing.signer import MadeSignature
from db.session import WriteSession


async def note_signed(
    session: WriteSession, version: AdapterVersion, made: MadeSignature, *, job_id: str | None = None
) -> None:
    """Records that a version was signed, also one that was refused before."""
    await SignatureRepository(session, version.tenant_id).put(version.adapter_id, version.version, made)
    version.signature_problem, version.signed_at = None, datetime.now(UTC)
    events.record(
        session,
        version.tenant_id,
        version.adapter_id,
        "version.signed",
        f"Version {version.version} was signed with the platform's key {made.key_id[:16]}.",
        version=version.version,
        job_id=job_id,
        data={"key_id": made.key_id},
    )


async def note_checked(
    session: WriteSession, version: AdapterVersion, problem: str | None, at: datetime
) -> bool:
    """Records the result of comparing all stored files of a version with its signature. Returns whether it
    differs from the last one.
    """
    repository = SignatureRepository(session, version.tenant_id)
    await repository.note_checked(version.adapter_id, version.version, at)
    if version.signature_problem == problem:
        return False
    version.signature_problem = problem
    refused = problem is not None
    message = (
        f"Version {version.version} is refused, because it is not what was signed: {problem}."
        if refused
        else f"All files of version {version.version} are what was signed."
    )
    events.record(
        session,
        version.tenant_id,
        version.adapter_id,
        "version.signature_invalid" if refused else "version.signature_valid",
        message,
        version=version.version,
        level="error" if refused else "info",
    )
    return True
