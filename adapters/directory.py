"""Queries over every tenant's adapters: for the engine, whose memory they share, and for whoever removes what
nobody needs. Nothing of what is found here is shown to a tenant.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import Row, cast, exists, func, select
from sqlalchemy.dialects.postgresql import JSONPATH
from sqlalchemy.ext.asyncio import AsyncSession

from adapters.jobs.models import Job
from adapters.models import Adapter, AdapterVersion, VersionState
from tenants.models import Plan, Tenant


class AdapterDirectory:
    """Finds adapters, whoever's they are."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def pinned(self, base: str, *, after: str, limit: int) -> Sequence[Row[str, str, int]]:
        """`adapter_id`, `digest` and `rank` of what plans have room to pin, beyond the adapter `after`."""
        place = func.row_number().over(partition_by=Adapter.tenant_id, order_by=Adapter.id)
        serving = (
            select(
                Adapter.id.label("adapter_id"),
                Adapter.tenant_id,
                AdapterVersion.digest,
                AdapterVersion.rank,
                place.label("place"),
                Plan.pinned_adapters,
            )
            .join(Tenant, Tenant.id == Adapter.tenant_id)
            .join(Plan, Plan.id == Tenant.plan_id)
            .join(
                AdapterVersion,
                (AdapterVersion.adapter_id == Adapter.id)
                & (AdapterVersion.version == Adapter.active_version),
            )
            .where(Adapter.base == base, Adapter.deleted_at.is_(None), Adapter.disabled_at.is_(None))
            .where(AdapterVersion.state == VersionState.READY, Plan.pinned_adapters > 0)
            .subquery()
        )
        query = (
            select(serving.c.adapter_id, serving.c.digest, serving.c.rank)
            .where(serving.c.place <= serving.c.pinned_adapters, serving.c.adapter_id > after)
            .order_by(serving.c.adapter_id)
            .limit(limit)
        )
        return (await self.session.execute(query)).all()

    async def is_served(self, digest: str, *, besides: str) -> bool:
        """Whether it is the active version of an adapter of another tenant."""
        query = (
            select(AdapterVersion.version)
            .join(
                Adapter,
                (Adapter.id == AdapterVersion.adapter_id)
                & (Adapter.active_version == AdapterVersion.version),
            )
            .where(AdapterVersion.digest == digest, AdapterVersion.state == VersionState.READY)
            .where(Adapter.tenant_id != besides, Adapter.deleted_at.is_(None))
        )
        return bool((await self.session.execute(select(exists(query)))).scalar())

    async def deleted_before(self, moment: datetime, *, limit: int) -> list[Adapter]:
        """Adapters deleted before `moment` of which something is left, the longest deleted first."""
        left = exists(select(AdapterVersion.version).where(AdapterVersion.adapter_id == Adapter.id))
        query = (
            select(Adapter)
            .where(Adapter.deleted_at < moment, left)
            .order_by(Adapter.deleted_at, Adapter.id)
            .limit(limit)
        )
        return list((await self.session.execute(query)).scalars())

    async def named_by_rows(self, adapter_ids: Collection[str]) -> dict[str, set[str]]:
        """Of those adapters that have rows, by id, the objects that versions and jobs name."""
        named: dict[str, set[str]] = {}
        versions = select(AdapterVersion.adapter_id, AdapterVersion.sources).where(
            AdapterVersion.adapter_id.in_(adapter_ids)
        )
        for adapter_id, sources in (await self.session.execute(versions)).all():
            named.setdefault(adapter_id, set()).update(source["key"] for source in sources.values())
        jobs = select(Job.adapter_id, Job.parameters).where(Job.adapter_id.in_(adapter_ids))
        for adapter_id, parameters in (await self.session.execute(jobs)).all():
            if adapter_id in named and parameters.get("calibration"):
                named[adapter_id].add(parameters["calibration"]["key"])
        return named

    async def is_needed(self, digest: str) -> bool:
        """Whether a version that is not deleted consists of the artifact, or has it to choose from."""
        live = select(AdapterVersion.version).where(AdapterVersion.state != VersionState.DELETING)
        needed = exists(live.where(AdapterVersion.digest == digest)) | exists(
            live.where(AdapterVersion.artifacts.path_exists(cast(_artifact_path(digest), JSONPATH)))
        )
        return bool((await self.session.execute(select(needed))).scalar())


def _artifact_path(digest: str) -> str:
    """In SQL's JSON path language: an artifact of any dtype with this digest, which is hexadecimal."""
    assert digest.isalnum()
    return f'$.*.digest ? (@ == "{digest}")'
