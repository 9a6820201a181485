"""Issues certificates of deletions whose rows and objects are gone."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from db.base import new_id
from db.session import EVERY_TENANT, Database, WriteSession
from retention.certificates import FIRST_PREVIOUS, signed, statement_of
from retention.signing import CertificateSigner, key_id
from tenants.actors import SYSTEM
from tenants.audit.service import OPERATOR_CHAIN, AuditFilter, AuditLog
from tenants.evidence.service import CERTIFICATE_KEY_USED as KEY_USED
from tenants.retention.classes import RetentionBounds
from tenants.retention.models import Deletion, DeletionCertificate
from tenants.retention.repository import (
    CertificateRepository,
    DeletionRepository,
    HoldRepository,
    RetentionInventory,
)

log = structlog.get_logger(__name__)

MOST_TOGETHER = 100
"""Requests of one certificate."""
TOGETHER = ("response", "conversation", "file")
"""Kinds of objects of which many are deleted: requests that come between two passes share a certificate."""
MAX_ROUNDS = 100
CERTIFIED = "deletion.certified"


class Certifier:
    """Issues the certificates of every organization. All methods raise DatabaseUnavailable."""

    def __init__(self, database: Database, signer: CertificateSigner, bounds: RetentionBounds) -> None:
        self._database = database
        self._signer = signer
        self._bounds = bounds
        self._is_known = False

    async def run(self) -> int:
        """Certifies what can be; returns how many certificates it issued."""
        async with self._database.read(EVERY_TENANT) as session:
            tenants = await RetentionInventory(session).tenants_to_certify()
        total = 0
        for tenant_id in tenants:
            for _ in range(MAX_ROUNDS):
                if not await self._certify(tenant_id):
                    break
                total += 1
        return total

    async def _certify(self, tenant_id: str) -> bool:
        await self._make_key_known()
        async with self._database.write(tenant_id) as session:
            certificates, deletions = (
                CertificateRepository(session, tenant_id),
                DeletionRepository(session, tenant_id),
            )
            last = await certificates.last()
            together = _together(await deletions.certifiable(MOST_TOGETHER))
            if not together:
                return False
            counts = await deletions.counts([one.id for one in together])
            now = await HoldRepository(session, tenant_id).now()
            number, previous = (1, FIRST_PREVIOUS) if last is None else (last.number + 1, bytes(last.digest))
            certificate_id = new_id("delcert")
            statement = statement_of(
                certificate_id, tenant_id, (number, previous), together, counts, now, self._bounds
            )
            document, digest = signed(statement, self._signer)
            row = DeletionCertificate(
                id=certificate_id,
                tenant_id=tenant_id,
                number=number,
                cause=together[0].cause,
                object_id=together[0].object_id if len(together) == 1 else None,
                num_rows=statement["rows"],
                num_objects=statement["objects"],
                document=document,
                digest=digest,
                issued_at=now,
            )
            certificates.add_own(row)
            for one in together:
                one.state, one.certificate_id = "certified", certificate_id
            await session.flush()
            await deletions.forget_counts([one.id for one in together])
            await self._record(session, row)
        if together[0].cause == "organization":
            async with self._database.write(OPERATOR_CHAIN) as session:
                await self._record(session, row, OPERATOR_CHAIN)
        log.info("deletion certified", tenant_id=tenant_id, certificate_id=certificate_id)
        return True

    async def _record(
        self, session: WriteSession, row: DeletionCertificate, chain: str | None = None
    ) -> None:
        details = {
            "sha256": bytes(row.digest).hex(),
            "number": row.number,
            "cause": row.cause,
            "rows": row.num_rows,
            "objects": row.num_objects,
        }
        if chain is not None:
            details["organization_id"] = row.tenant_id
        target = ("deletion_certificate", row.id)
        await AuditLog.record(session, chain or row.tenant_id, SYSTEM, CERTIFIED, target, details)

    async def _make_key_known(self) -> None:
        """Records the first use of the key in the service's own audit log."""
        if self._is_known:
            return
        identity = key_id(self._signer.public_key)
        known = AuditFilter(types=(KEY_USED,), target_ids=(identity,))
        if not await AuditLog(self._database).list(OPERATOR_CHAIN, known, limit=1):
            async with self._database.write(OPERATOR_CHAIN) as session:
                details = {"public_key": self._signer.public_key.hex(), "algorithm": "Ed25519"}
                target = ("certificate_key", identity)
                await AuditLog.record(session, OPERATOR_CHAIN, SYSTEM, KEY_USED, target, details)
        self._is_known = True


def _together(deletions: Sequence[Deletion]) -> Sequence[Deletion]:
    """Returns the first deletion with those that can share its certificate."""
    if not deletions:
        return ()
    first = deletions[0]
    if first.cause != "request" or first.object_kind not in TOGETHER:
        return (first,)
    return [one for one in deletions if (one.cause, one.object_kind) == (first.cause, first.object_kind)]
