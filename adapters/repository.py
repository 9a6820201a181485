"""Queries the tables of adapters and their versions.

`AdapterRepository` sees one tenant's rows, without deleted adapters. `AdapterDirectory` sees all tenants'
rows: for the engine, whose memory they share, and for the clean-up. What it finds is not shown to a tenant.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import ARRAY, Row, Select, Text, any_, bindparam, cast, exists, func, select
from sqlalchemy.dialects.postgresql import JSONPATH
from sqlalchemy.ext.asyncio import AsyncSession

from adapters.bases import Bases
from adapters.jobs.models import Job
from adapters.model_names import ModelName
from adapters.models import Adapter, AdapterVersion, VersionState
from adapters.sharing.models import AdapterShare, ShareState
from db.cursors import fetch_page, require_cursor
from db.repository import TenantRepository, select_owned
from tenants.models import Plan, Tenant

Found = Row[Adapter, AdapterVersion | None]
"""An adapter and one of its versions."""


class AdapterRepository(TenantRepository):
    # Adapters ---------------------------------------------------------------------------------------------

    async def find_with_version(self, bases: Bases, name: ModelName) -> Found | None:
        """Returns the adapter on one of the bases, and the version `name` selects: the pinned one, else the
        one that represents the adapter. One query.
        """
        query = self._with_version(bases, name.version).where(
            Adapter.id == name.adapter_id
            if name.adapter_id
            else (Adapter.base == name.base) & (Adapter.name == name.adapter)
        )
        return (await self.session.execute(query)).one_or_none()

    async def page(
        self, bases: Bases, *, after: str | None, limit: int, newest_first: bool, name: str | None = None
    ) -> Sequence[Found]:
        """Returns adapters after the one whose id is `after`, in order of creation, each with the version
        that represents it. Raises UnknownCursor.
        """
        query = self._with_version(bases)
        if name is not None:
            query = query.where(Adapter.name == name)
        if after is not None:
            of_bases = self.select_own(Adapter).where(Adapter.base.in_(bases.names))
            await require_cursor(self.session, of_bases, Adapter.id, after)
            query = query.where(Adapter.id < after if newest_first else Adapter.id > after)
        query = query.order_by(Adapter.id.desc() if newest_first else Adapter.id)
        return (await self.session.execute(query.limit(limit))).all()

    async def get(self, adapter_id: str) -> Adapter | None:
        """Returns the adapter, on whichever base."""
        return (await self.session.execute(self._live().where(Adapter.id == adapter_id))).scalar_one_or_none()

    async def find(self, bases: Bases, name: ModelName) -> Adapter | None:
        """Returns the adapter that `name` names, by id or by base and name; disabled ones too."""
        found = await self.find_with_version(bases, name)
        return None if found is None else found[0]

    async def lock(self, name: ModelName) -> Adapter | None:
        """Returns the adapter, by id or by name on a base, locked until the transaction ends."""
        query = self._live().where(
            Adapter.id == name.adapter_id
            if name.adapter_id
            else (Adapter.base == name.base) & (Adapter.name == name.adapter)
        )
        return (await self.session.execute(query.with_for_update())).scalar_one_or_none()

    async def all_active(self, bases: Bases) -> list[Row[Adapter, AdapterVersion]]:
        """Returns enabled adapters with their active version, sorted by name."""
        query = self._active(bases).order_by(Adapter.name)
        return list((await self.session.execute(query)).all())

    async def first_serving(self, bases: Bases, limit: int) -> list[Row[Adapter, AdapterVersion]]:
        """Returns the oldest adapters with their active, ready versions."""
        query = self._active(bases).where(AdapterVersion.state == VersionState.READY)
        return list((await self.session.execute(query.order_by(Adapter.id).limit(limit))).all())

    async def names(self, adapter_ids: Collection[str]) -> dict[str, tuple[str, bool]]:
        """Returns by id the name and whether the adapter is deleted; no other query returns deleted ones."""
        rows = (await self.execute_own(_names(), ids=list(adapter_ids))).all()
        return {id_: (name, gone) for id_, name, gone in rows}

    async def search(self, bases: Bases, part: str, limit: int) -> Sequence[Adapter]:
        """Returns adapters whose name contains `part` in any case; those that begin with it first."""
        on_bases = self._live().where(Adapter.base.in_(bases.names))
        named = on_bases.where(Adapter.name.icontains(part, autoescape=True))
        first = Adapter.name.istartswith(part, autoescape=True).desc()
        return (await self.session.execute(named.order_by(first, Adapter.name).limit(limit))).scalars().all()

    async def count(self) -> int:
        """Returns the number of the tenant's adapters, on any base."""
        return (await self.session.execute(self._live(func.count()))).scalar_one()

    # Versions ---------------------------------------------------------------------------------------------

    async def versions(self, adapter_id: str) -> list[AdapterVersion]:
        """Returns an adapter's versions, oldest first."""
        query = self._versions(adapter_id).order_by(AdapterVersion.version)
        return list((await self.session.execute(query)).scalars())

    async def version_page(
        self, adapter_id: str, *, after: int | None, limit: int, newest_first: bool
    ) -> list[AdapterVersion]:
        listed = self._versions(adapter_id)
        number = AdapterVersion.version
        page = await fetch_page(
            self.session, listed, number, after=after, limit=limit, newest_first=newest_first
        )
        return list(page.scalars())

    async def version(self, adapter_id: str, version: int) -> AdapterVersion | None:
        query = self._versions(adapter_id).where(AdapterVersion.version == version)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def lock_version(self, adapter_id: str, version: int) -> AdapterVersion | None:
        """Returns the version, locked. Lock its adapter first where both are needed."""
        query = self._versions(adapter_id).where(AdapterVersion.version == version).with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def latest_version(self, adapter_id: str) -> int:
        """Returns the highest version number so far, 0 when there is none."""
        query = self.select_own(AdapterVersion, func.coalesce(func.max(AdapterVersion.version), 0))
        return (await self.session.execute(query.where(AdapterVersion.adapter_id == adapter_id))).scalar_one()

    async def version_with_digest(self, adapter_id: str, digest: str) -> AdapterVersion | None:
        query = self._versions(adapter_id).where(AdapterVersion.digest == digest)
        return (
            await self.session.execute(query.order_by(AdapterVersion.version).limit(1))
        ).scalar_one_or_none()

    async def version_from(self, adapter_id: str, sources: Mapping[str, str]) -> AdapterVersion | None:
        """Returns the newest version made from files with these SHA-256, by file name, that has not
        failed.
        """
        query = self._versions(adapter_id).where(AdapterVersion.state != VersionState.FAILED)
        for filename, sha256 in sources.items():
            query = query.where(AdapterVersion.sources[filename]["sha256"].as_string() == sha256)
        newest = query.order_by(AdapterVersion.version.desc()).limit(1)
        return (await self.session.execute(newest)).scalar_one_or_none()

    async def mark_deleting(self, adapter_id: str) -> list[Row[str | None, int | None]]:
        """Takes every version of the adapter out of service permanently; returns their digests and ranks."""
        query = (
            self.update_own(AdapterVersion)
            .where(AdapterVersion.adapter_id == adapter_id)
            .values(state=VersionState.DELETING)
            .returning(AdapterVersion.digest, AdapterVersion.rank)
        )
        return list((await self.session.execute(query)).all())

    async def forget_versions(self, adapter_id: str) -> None:
        """Deletes the rows of a deleted adapter's versions."""
        query = self.delete_own(AdapterVersion).where(
            AdapterVersion.adapter_id == adapter_id, AdapterVersion.state == VersionState.DELETING
        )
        await self.session.execute(query)

    # ------------------------------------------------------------------------------------------------------

    def _live(self, *columns: Any) -> Select[Any]:
        return self.select_own(Adapter, *columns).where(Adapter.deleted_at.is_(None))

    def _with_version(self, bases: Bases, version: int | None = None) -> Select[Any]:
        """Selects adapters with their `version`; without one, with the active one, else the latest,
        if any.
        """
        wanted: Any = version
        if version is None:
            latest = (
                select(func.max(AdapterVersion.version))
                .where(AdapterVersion.adapter_id == Adapter.id)
                .correlate(Adapter)
                .scalar_subquery()
            )
            wanted = func.coalesce(Adapter.active_version, latest)
        of_adapter = (AdapterVersion.adapter_id == Adapter.id) & (AdapterVersion.version == wanted)
        return (
            self._live(Adapter, AdapterVersion)
            .outerjoin(AdapterVersion, of_adapter)
            .where(Adapter.base.in_(bases.names))
        )

    def _active(self, bases: Bases) -> Select[Any]:
        return (
            self._live(Adapter, AdapterVersion)
            .join(
                AdapterVersion,
                (AdapterVersion.adapter_id == Adapter.id)
                & (AdapterVersion.version == Adapter.active_version),
            )
            .where(Adapter.base.in_(bases.names), Adapter.disabled_at.is_(None))
        )

    def _versions(self, adapter_id: str) -> Select[Any]:
        return self.select_own(AdapterVersion).where(AdapterVersion.adapter_id == adapter_id)


@cache
def _names() -> Select[Any]:
    ids = bindparam("ids", type_=ARRAY(Text))
    columns = (Adapter.id, Adapter.name, Adapter.deleted_at.is_not(None))
    return select_owned(Adapter, *columns).where(Adapter.id == any_(ids))


@cache
def _pinned() -> Select[Any]:
    columns = (Adapter.base, AdapterVersion.digest, AdapterVersion.rank)
    served = (
        (AdapterVersion.adapter_id == Adapter.id) & (AdapterVersion.version == Adapter.active_version),
        Adapter.base.in_(bindparam("bases", expanding=True)),
        Adapter.deleted_at.is_(None),
        Adapter.disabled_at.is_(None),
        AdapterVersion.state == VersionState.READY,
    )
    own = select(Adapter.id.label("key"), Adapter.tenant_id.label("user_id"), *columns).where(*served)
    shared = select(AdapterShare.id, AdapterShare.recipient_id, *columns).where(
        AdapterShare.adapter_id == Adapter.id, AdapterShare.state == ShareState.ACTIVE, *served
    )
    # Ids of shares sort after those of adapters: a plan pins the tenant's own adapters first.
    used = own.union_all(shared).subquery()
    place = func.row_number().over(partition_by=used.c.user_id, order_by=used.c.key).label("place")
    serving = (
        select(used, place, Plan.pinned_adapters)
        .join(Tenant, Tenant.id == used.c.user_id)
        .join(Plan, Plan.id == Tenant.plan_id)
        .where(Plan.pinned_adapters > 0)
        .subquery()
    )
    return (
        select(serving.c.key, serving.c.base, serving.c.digest, serving.c.rank)
        .where(serving.c.place <= serving.c.pinned_adapters, serving.c.key > bindparam("after"))
        .order_by(serving.c.key)
        .limit(bindparam("limit"))
    )


class AdapterDirectory:
    """Finds adapters of all tenants."""

    def __init__(self, session: AsyncSession) -> None:
        self.session = session

    async def pinned(self, bases: Bases, *, after: str, limit: int) -> Sequence[Row[str, str, str, int]]:
        """Returns `key`, `base`, `digest` and `rank` of adapters to pin by the plans of the tenants that use
        them, after the key `after`: the id of a tenant's own adapter, or of the share of another's.
        """
        values = {"bases": bases.names, "after": after, "limit": limit}
        return (await self.session.execute(_pinned(), values)).all()

    async def named(self, digests: Collection[str]) -> Sequence[Row[str | None, str, str, str, str, int]]:
        """Returns `digest`, `tenant_id`, `tenant`, `adapter_id`, `adapter` and `version` of each version with
        one of the digests that is not deleted, oldest last.
        """
        query = (
            select(
                AdapterVersion.digest,
                Tenant.id.label("tenant_id"),
                Tenant.name.label("tenant"),
                Adapter.id.label("adapter_id"),
                Adapter.name.label("adapter"),
                AdapterVersion.version,
            )
            .join(Adapter, Adapter.id == AdapterVersion.adapter_id)
            .join(Tenant, Tenant.id == Adapter.tenant_id)
            .where(AdapterVersion.digest.in_(digests), Adapter.deleted_at.is_(None))
            .order_by(Adapter.id.desc(), AdapterVersion.version.desc())
        )
        return (await self.session.execute(query)).all()

    async def is_served(self, digest: str, *, base: str, besides: str) -> bool:
        """Returns whether it is the active version of an adapter of another tenant on the base."""
        query = (
            select(AdapterVersion.version)
            .join(
                Adapter,
                (Adapter.id == AdapterVersion.adapter_id)
                & (Adapter.active_version == AdapterVersion.version),
            )
            .where(AdapterVersion.digest == digest, AdapterVersion.state == VersionState.READY)
            .where(Adapter.base == base, Adapter.tenant_id != besides, Adapter.deleted_at.is_(None))
        )
        return bool((await self.session.execute(select(exists(query)))).scalar())

    async def ready_since(self, moment: datetime) -> list[Row[Adapter, AdapterVersion]]:
        """Returns versions that became ready since `moment`, with their adapters."""
        query = (
            select(Adapter, AdapterVersion)
            .join(AdapterVersion, AdapterVersion.adapter_id == Adapter.id)
            .where(AdapterVersion.ready_at >= moment, Adapter.deleted_at.is_(None))
            .order_by(AdapterVersion.ready_at)
        )
        return list((await self.session.execute(query)).all())

    async def deleted_before(self, moment: datetime, *, limit: int) -> list[Adapter]:
        """Returns adapters deleted before `moment` that still have versions, the longest deleted first."""
        left = exists(select(AdapterVersion.version).where(AdapterVersion.adapter_id == Adapter.id))
        query = (
            select(Adapter)
            .where(Adapter.deleted_at < moment, left)
            .order_by(Adapter.deleted_at, Adapter.id)
            .limit(limit)
        )
        return list((await self.session.execute(query)).scalars())

    async def named_by_rows(self, adapter_ids: Collection[str]) -> dict[str, set[str]]:
        """Returns the objects named by versions and jobs, by adapter id, for those adapters that have
        rows.
        """
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
        """Returns whether a version that is not deleted serves the artifact or may choose it."""
        live = select(AdapterVersion.version).where(AdapterVersion.state != VersionState.DELETING)
        needed = exists(live.where(AdapterVersion.digest == digest)) | exists(
            live.where(AdapterVersion.artifacts.path_exists(cast(_artifact_path(digest), JSONPATH)))
        )
        return bool((await self.session.execute(select(needed))).scalar())


def _artifact_path(digest: str) -> str:
    """Returns a SQL/JSON path that matches an artifact of any dtype with this hexadecimal digest."""
    assert digest.isalnum()
    return f'$.*.digest ? (@ == "{digest}")'
