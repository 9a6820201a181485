"""Reads and writes one tenant's users, their roles in projects, and invitations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, bindparam

from db.cursors import fetch_page
from db.repository import TenantRepository, select_owned
from tenants.audit.repository import deleted_ids
from tenants.models import (
    Identity,
    Invite,
    PasswordReset,
    Plan,
    Project,
    ProjectMember,
    SecondFactor,
    Tenant,
    User,
)
from tenants.repository import is_id
from tenants.scim.models import ScimGroupMember, ScimUser

Member = Row[ProjectMember, User]
Membership = Row[ProjectMember, Project]
# Built once: every page of the console runs it.
_SIGNED_IN = (
    select_owned(User, User, Tenant, Plan, SecondFactor.confirmed_at)
    .join(Tenant, Tenant.id == User.tenant_id)
    .outerjoin(Plan, Plan.id == Tenant.plan_id)
    .outerjoin(SecondFactor, SecondFactor.user_id == User.id)
    .where(User.removed_at.is_(None), User.id == bindparam("user_id"))
)


class MemberRepository(TenantRepository):
    # Users ------------------------------------------------------------------------------------------------

    async def find(self, user_id: str) -> User | None:
        """Returns a user. Neither this nor the other queries find removed users."""
        if not is_id(user_id):
            return None
        return (await self.session.execute(self._live().where(User.id == user_id))).scalar_one_or_none()

    async def lock(self, user_id: str) -> User | None:
        """Locks the user for writing until the transaction ends, and returns it."""
        if not is_id(user_id):
            return None
        query = self._live().where(User.id == user_id).with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def lock_all(self, user_ids: Collection[str]) -> Sequence[User]:
        """Locks those of the users that there are, in one order, until the transaction ends."""
        known = [user_id for user_id in user_ids if is_id(user_id)]
        query = self._live().where(User.id.in_(known)).order_by(User.id).with_for_update()
        return (await self.session.execute(query)).scalars().all()

    async def hold(self, user_id: str) -> User | None:
        """Locks the user against removal until the transaction ends, and returns it."""
        if not is_id(user_id):
            return None
        query = self._live().where(User.id == user_id).with_for_update(read=True)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def by_email(self, email: str) -> User | None:
        query = self._live().where(User.email == email)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def hold_owners(self) -> set[str]:
        """Locks all owners until the transaction ends; returns the ids of the owners that are not disabled.
        Call it before locking any other user, or two transactions can deadlock.
        """
        query = self.select_own(User, User.id, User.disabled_at)
        query = query.where(User.removed_at.is_(None), User.role == "owner")
        rows = await self.session.execute(query.order_by(User.id).with_for_update())
        return {user_id for user_id, disabled_at in rows if disabled_at is None}

    async def page(
        self, *, emails: Collection[str], after: str | None, limit: int, newest_first: bool
    ) -> Sequence[User]:
        filters = [User.removed_at.is_(None)]
        if emails:
            filters.append(User.email.in_([email.lower() for email in emails]))
        listed = self.select_own(User)
        page = await fetch_page(
            self.session, listed, User.id, *filters, after=after, limit=limit, newest_first=newest_first
        )
        return page.scalars().all()

    async def signed_in(self, user_id: str) -> Row[User, Tenant, Plan | None, datetime | None] | None:
        """Returns the user with their tenant, its plan, and the time since which a second factor is required
        of them.
        """
        if not is_id(user_id):
            return None
        found: Any = (await self.execute_own(_SIGNED_IN, user_id=user_id)).one_or_none()
        return found

    async def set_password_hash(self, user_id: str, password_hash: str) -> None:
        query = self.update_own(User).where(User.id == user_id).values(password_hash=password_hash)
        await self.session.execute(query)

    async def forget_resets(self, user_id: str) -> None:
        """Deletes the user's password reset tokens."""
        await self.session.execute(self.delete_own(PasswordReset).where(PasswordReset.user_id == user_id))

    async def forget_ways_in(self, user_id: str) -> list[tuple[str, int]]:
        """Deletes the second factor, identities and reset tokens of a removed user; another user can link the
        identities later. Returns how many rows of each table.
        """
        return await self._forget(user_id, SecondFactor, Identity, PasswordReset)

    async def forget_provisioning(self, user_id: str) -> list[tuple[str, int]]:
        """Deletes what an identity provider said of a removed user, and their places in its groups. Returns
        how many rows of each table.
        """
        return await self._forget(user_id, ScimGroupMember, ScimUser)

    async def _forget(self, user_id: str, *models: Any) -> list[tuple[str, int]]:
        found = []
        for model in models:
            gone = self.delete_own(model).where(model.user_id == user_id).returning(model.user_id)
            found.append((model.__tablename__, len((await self.session.execute(gone)).all())))
        return found

    def _live(self) -> Select[Any]:
        return self.select_own(User).where(User.removed_at.is_(None))

    # Project members --------------------------------------------------------------------------------------

    async def member(self, project_id: str, user_id: str, *, lock: bool = False) -> Member | None:
        if not (is_id(project_id) and is_id(user_id)):
            return None
        query = self._members(project_id).where(ProjectMember.user_id == user_id)
        if lock:
            query = query.with_for_update(of=ProjectMember)
        return (await self.session.execute(query)).one_or_none()

    async def member_page(
        self, project_id: str, *, after: str | None, limit: int, newest_first: bool
    ) -> Sequence[Member]:
        """Returns members, ordered by their users' ids."""
        page = await fetch_page(
            self.session,
            self._members(project_id),
            ProjectMember.user_id,
            after=after,
            limit=limit,
            newest_first=newest_first,
            deleted=deleted_ids(self.tenant_id, "role.assignment.deleted", project_id),
        )
        return page.all()

    async def memberships(self, user_ids: Collection[str]) -> Sequence[Membership]:
        """Returns the memberships of these users in projects that are not archived."""
        query = (
            self.select_own(ProjectMember, ProjectMember, Project)
            .join(Project, Project.id == ProjectMember.project_id)
            .where(ProjectMember.user_id.in_(user_ids), Project.archived_at.is_(None))
            .order_by(Project.id)
        )
        return (await self.session.execute(query)).all()

    async def leave(self, user_id: str, project_id: str | None = None) -> list[tuple[str, int]]:
        """Removes the user from a project, or from all; returns how many rows of which table."""
        query = self.delete_own(ProjectMember).where(ProjectMember.user_id == user_id)
        if project_id is not None:
            query = query.where(ProjectMember.project_id == project_id)
        gone = await self.session.execute(query.returning(ProjectMember.project_id))
        return [(ProjectMember.__tablename__, len(gone.all()))]

    def _members(self, project_id: str) -> Select[Any]:
        return (
            self.select_own(ProjectMember, ProjectMember, User)
            .join(User, User.id == ProjectMember.user_id)
            .where(ProjectMember.project_id == project_id)
        )

    # Invitations ------------------------------------------------------------------------------------------

    async def invite(self, invite_id: str, *, lock: bool = False) -> Invite | None:
        if not is_id(invite_id):
            return None
        query = self._invites().where(Invite.id == invite_id)
        if lock:
            query = query.with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def lock_pending_invites(self, email: str) -> Sequence[Invite]:
        """Locks the address's pending invitations, and new ones, until the transaction ends; returns them."""
        await self.advisory_lock(f"invites of {email}")
        query = self._invites().where(Invite.email == email, Invite.accepted_at.is_(None)).with_for_update()
        return (await self.session.execute(query)).scalars().all()

    async def lock_invite_by_digest(self, digest: bytes) -> Invite | None:
        query = self._invites().where(Invite.digest == digest).with_for_update()
        return (await self.session.execute(query)).scalar_one_or_none()

    async def invite_page(self, *, after: str | None, limit: int, newest_first: bool) -> Sequence[Invite]:
        page = await fetch_page(
            self.session,
            self.select_own(Invite),
            Invite.id,
            Invite.deleted_at.is_(None),
            after=after,
            limit=limit,
            newest_first=newest_first,
        )
        return page.scalars().all()

    def _invites(self) -> Select[Any]:
        return self.select_own(Invite).where(Invite.deleted_at.is_(None))

    async def live_projects(self, project_ids: Collection[str]) -> set[str]:
        """Returns which of these are projects of the tenant that are not archived."""
        wanted = [project_id for project_id in project_ids if is_id(project_id)]
        query = self.select_own(Project, Project.id).where(
            Project.id.in_(wanted), Project.archived_at.is_(None)
        )
        return set((await self.session.execute(query)).scalars())
