"""Queries signatures of versions: of one tenant, and of all for the workers that sign and check them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Row, and_, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from adapters.models import Adapter, AdapterVersion, VersionState
from adapters.signing.models import AdapterSignature
from adapters.signing.signer import MadeSignature
from db.repository import TenantRepository

SIGNED_STATES = (VersionState.READY, VersionState.DISABLED)
"""States of a version that needs a signature. One that is being prepared is signed by its job."""


class SignatureRepository(TenantRepository):
    async def find(self, adapter_id: str, version: int) -> AdapterSignature | None:
        query = self.select_own(AdapterSignature).where(
            AdapterSignature.adapter_id == adapter_id, AdapterSignature.version == version
        )
        return (await self.session.execute(query)).scalar_one_or_none()

    async def of_adapter(self, adapter_id: str) -> dict[int, AdapterSignature]:
        """Returns the signatures of an adapter's versions, by number."""
        query = self.select_own(AdapterSignature).where(AdapterSignature.adapter_id == adapter_id)
        return {row.version: row for row in (await self.session.execute(query)).scalars()}

    async def put(self, adapter_id: str, version: int, made: MadeSignature) -> None:
        """Stores a version's signature in place of an earlier one. Its version is locked."""
        values = {
            "key_id": made.key_id,
            "bundle": made.bundle,
            "report_key": made.report_key,
            "checked_at": None,
        }
        row = insert(AdapterSignature).values(
            adapter_id=adapter_id, version=version, tenant_id=self.tenant_id, **values
        )
        await self.session.execute(
            row.on_conflict_do_update(index_elements=["adapter_id", "version"], set_=values)
        )

    async def note_checked(self, adapter_id: str, version: int, at: datetime) -> None:
        checked = self.update_own(AdapterSignature).where(
            AdapterSignature.adapter_id == adapter_id, AdapterSignature.version == version
        )
        await self.session.execute(checked.values(checked_at=at))


class SignatureDirectory:
    """Finds versions of all tenants to sign or to check."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def to_sign(self, key_id: str, limit: int) -> Sequence[Row[str, str, int]]:
        """Returns `tenant_id`, `adapter_id` and `version` of versions in service without a signature of this
        key, oldest first. Those with a problem are left to the operator.
        """
        query = (
            select(AdapterVersion.tenant_id, AdapterVersion.adapter_id, AdapterVersion.version)
            .outerjoin(AdapterSignature, _same())
            .where(
                AdapterVersion.state.in_(SIGNED_STATES),
                AdapterVersion.signature_problem.is_(None),
                or_(AdapterSignature.key_id.is_(None), AdapterSignature.key_id != key_id),
            )
            .order_by(AdapterVersion.adapter_id, AdapterVersion.version)
            .limit(limit)
        )
        return (await self._session.execute(query)).all()

    async def to_check(self, before: datetime, limit: int) -> Sequence[Row[str, str, int]]:
        """Returns `tenant_id`, `adapter_id` and `version` of signed versions in service that were not checked
        since `before`, the longest unchecked first.
        """
        query = (
            select(AdapterVersion.tenant_id, AdapterVersion.adapter_id, AdapterVersion.version)
            .join(AdapterSignature, _same())
            .where(
                AdapterVersion.state.in_(SIGNED_STATES),
                or_(AdapterSignature.checked_at.is_(None), AdapterSignature.checked_at < before),
            )
            .order_by(AdapterSignature.checked_at.asc().nulls_first(), AdapterVersion.adapter_id)
            .limit(limit)
        )
        return (await self._session.execute(query)).all()

    async def counts(self) -> dict[str | None, int]:
        """Returns the number of versions in service by the id of the key that signed them; None: unsigned."""
        query = (
            select(AdapterSignature.key_id, func.count())
            .select_from(AdapterVersion)
            .outerjoin(AdapterSignature, _same())
            .where(AdapterVersion.state.in_(SIGNED_STATES))
            .group_by(AdapterSignature.key_id)
        )
        return dict((await self._session.execute(query)).tuples().all())

    async def problems(self, limit: int) -> Sequence[Row[str, str, str, int, str | None]]:
        """Returns `tenant_id`, `base`, `name`, `version` and `signature_problem` of refused
        versions.
        """
        query = (
            select(
                AdapterVersion.tenant_id,
                Adapter.base,
                Adapter.name,
                AdapterVersion.version,
                AdapterVersion.signature_problem,
            )
            .join(Adapter, Adapter.id == AdapterVersion.adapter_id)
            .where(AdapterVersion.signature_problem.is_not(None), AdapterVersion.state.in_(SIGNED_STATES))
            .order_by(AdapterVersion.adapter_id, AdapterVersion.version)
            .limit(limit)
        )
        return (await self._session.execute(query)).all()


def _same() -> ColumnElement[bool]:
    return and_(
        AdapterSignature.adapter_id == AdapterVersion.adapter_id,
        AdapterSignature.version == AdapterVersion.version,
    )
