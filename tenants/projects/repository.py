"""Reads and writes one tenant's projects and their service accounts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import Row, func

from db.cursors import fetch_page
from db.repository import TenantRepository
from tenants.models import ApiKey, Project, ProjectMember, ServiceAccount
from tenants.repository import is_id


class ProjectRepository(TenantRepository):
    async def find(self, project_id: str) -> Project | None:
        """Returns a project, also if it is archived."""
        if not is_id(project_id):
            return None
        query = self.select_own(Project).where(Project.id == project_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def default(self) -> Project | None:
        query = self.select_own(Project).where(Project.is_default)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def lock(self, project_id: str) -> Project | None:
        """Locks the project for writing until the transaction ends, and returns it."""
        if not is_id(project_id):
            return None
        query = self.select_own(Project).where(Project.id == project_id).with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def hold(self, project_id: str) -> Project | None:
        """Locks the project against archiving until the transaction ends, and returns it."""
        if not is_id(project_id):
            return None
        query = self.select_own(Project).where(Project.id == project_id).with_for_update(read=True)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def page(
        self, *, with_archived: bool, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[Project]:
        listed = self.select_own(Project)
        filters = () if with_archived else (Project.archived_at.is_(None),)
        page = await fetch_page(
            self.session, listed, Project.id, *filters, after=after, limit=limit, newest_first=newest_first
        )
        return page.scalars().all()

    async def counts(self, project_ids: Collection[str]) -> Sequence[Row[str, int, int]]:
        """Returns for each project the number of keys that are not revoked, and of members."""
        keys = (
            self.select_own(ApiKey, func.count())
            .where(ApiKey.project_id == Project.id, ApiKey.revoked_at.is_(None))
            .correlate(Project)
            .scalar_subquery()
        )
        members = (
            self.select_own(ProjectMember, func.count())
            .where(ProjectMember.project_id == Project.id)
            .correlate(Project)
            .scalar_subquery()
        )
        query = self.select_own(Project, Project.id, keys, members).where(Project.id.in_(project_ids))
        return (await self.session.execute(query)).all()

    # Service accounts -------------------------------------------------------------------------------------

    async def account(self, project_id: str, account_id: str) -> ServiceAccount | None:
        if not (is_id(project_id) and is_id(account_id)):
            return None
        query = self.select_own(ServiceAccount).where(
            ServiceAccount.id == account_id,
            ServiceAccount.project_id == project_id,
            ServiceAccount.deleted_at.is_(None),
        )
        return (await self.session.execute(query)).scalar_one_or_none()

    async def lock_account(self, project_id: str, account_id: str) -> ServiceAccount | None:
        """Locks the service account for writing until the transaction ends, and returns it."""
        if not (is_id(project_id) and is_id(account_id)):
            return None
        query = self.select_own(ServiceAccount).where(
            ServiceAccount.id == account_id,
            ServiceAccount.project_id == project_id,
            ServiceAccount.deleted_at.is_(None),
        )
        return (await self.session.execute(query.with_for_update())).scalar_one_or_none()

    async def hold_account(self, account_id: str) -> ServiceAccount | None:
        """Locks the service account against deletion until the transaction ends, and returns it."""
        if not is_id(account_id):
            return None
        query = self.select_own(ServiceAccount).where(
            ServiceAccount.id == account_id, ServiceAccount.deleted_at.is_(None)
        )
        return (await self.session.execute(query.with_for_update(read=True))).scalar_one_or_none()

    async def account_page(
        self, project_id: str, *, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[ServiceAccount]:
        page = await fetch_page(
            self.session,
            self.select_own(ServiceAccount).where(ServiceAccount.project_id == project_id),
            ServiceAccount.id,
            ServiceAccount.deleted_at.is_(None),
            after=after,
            limit=limit,
            newest_first=newest_first,
        )
        return page.scalars().all()

    async def named_accounts(self, limit: int) -> list[tuple[str, ServiceAccount]]:
        """Returns the accounts of projects that are not archived, each after the project's name."""
        query = (
            self.select_own(ServiceAccount, Project.name, ServiceAccount)
            .join(Project, Project.id == ServiceAccount.project_id)
            .where(ServiceAccount.deleted_at.is_(None), Project.archived_at.is_(None))
            .order_by(Project.name, ServiceAccount.name, ServiceAccount.id)
        )
        return [(name, row) for name, row in await self.session.execute(query.limit(limit))]

    async def account_uses(self, account_ids: Collection[str]) -> Sequence[Row[str, int, datetime | None]]:
        """Returns for each account with keys the number that are not revoked, and when one was last used."""
        query = (
            self.select_own(ApiKey, ApiKey.service_account_id, func.count(), func.max(ApiKey.last_used_at))
            .where(ApiKey.service_account_id.in_(account_ids), ApiKey.revoked_at.is_(None))
            .group_by(ApiKey.service_account_id)
        )
        return (await self.session.execute(query)).all()

    async def delete_accounts(self, project_id: str) -> None:
        """Deletes all service accounts of the project."""
        query = self.update_own(ServiceAccount).where(
            ServiceAccount.project_id == project_id, ServiceAccount.deleted_at.is_(None)
        )
        await self.session.execute(query.values(deleted_at=func.now()))
