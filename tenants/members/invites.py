"""Invites email addresses to a tenant, and turns accepted invitations into users.

Every method is one transaction. An invitation is accepted once, with its token, which `create` returns for
the caller to mail or show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sqlalchemy.exc import IntegrityError

from db.base import new_id
from db.session import EVERY_TENANT, Database, WriteSession
from tenants import keys, passwords
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import (
    InviteAccepted,
    InviteAddressMismatch,
    InviteInvalid,
    InviteNotFound,
    NameTaken,
    ProjectNotFound,
    TenantNotFound,
)
from tenants.external_identity import ExternalIdentity
from tenants.key_secrets import KeySecrets
from tenants.members.account import Membership, account_of, new_identity, new_user
from tenants.members.changes import require_may_appoint
from tenants.members.repository import MemberRepository
from tenants.members.service import new_member
from tenants.models import Invite, Tenant, User
from tenants.repository import TenantDirectory
from tenants.roles import ProjectRole, Role, checked_project_role, checked_role
from tenants.validation import MAX_NAME_LEN, checked_email

DEFAULT_LIFE = timedelta(days=7)
MAX_LIFE = timedelta(days=90)
MAX_PROJECTS = 100


@dataclass(frozen=True, slots=True)
class CreatedInvite:
    """A new invitation. The token is shown once and never stored."""

    invite: Invite
    token: str = field(repr=False)


class InviteService:
    """Invitations of all tenants. Tokens are stored as HMACs under `secret`, which is the server's."""

    def __init__(self, database: Database, secret: str | KeySecrets) -> None:
        self._database = database
        self._hasher = keys.KeyHasher(secret)

    async def list(
        self, tenant_id: str, *, after: str | None = None, limit: int = 20, newest_first: bool = True
    ) -> list[Invite]:
        """Returns invitations after the one with the id `after`, accepted and expired ones included."""
        async with self._database.read(tenant_id) as session:
            page = await MemberRepository(session, tenant_id).invite_page(
                after=after, limit=limit, newest_first=newest_first
            )
        return [*page]

    async def get(self, tenant_id: str, invite_id: str) -> Invite:
        """Raises InviteNotFound."""
        async with self._database.read(tenant_id) as session:
            found = await MemberRepository(session, tenant_id).invite(invite_id)
        if found is None:
            raise InviteNotFound(invite_id)
        return found

    async def create(
        self,
        tenant_id: str,
        email: str,
        role: Role,
        actor: Actor,
        *,
        projects: Mapping[str, ProjectRole] | None = None,
        life: timedelta = DEFAULT_LIFE,
    ) -> CreatedInvite:
        """Invites an address, with `role` in the tenant and with roles in `projects`, by project id. Pending
        invitations of the address are deleted, which invalidates their tokens.

        Raises NameTaken if one of the tenant's users has the address; ProjectNotFound, OwnersOnly, ValueError
        naming the field. Does not reveal whether other tenants know the address.
        """
        email = checked_email(email)
        checked_role(role)
        places = dict(projects or {})
        if len(places) > MAX_PROJECTS:
            raise ValueError(f"projects must be at most {MAX_PROJECTS}, not {len(places)}")
        for place in places.values():
            checked_project_role(place)
        if not timedelta(0) < life <= MAX_LIFE:
            raise ValueError(f"expires_at must be within {MAX_LIFE.days} days")
        made, now = keys.generate_invite(), datetime.now(UTC)
        invite = Invite(
            id=new_id("invite"),
            tenant_id=tenant_id,
            email=email,
            role=role,
            projects=places,
            digest=self._hasher.digest(made.plaintext),
            secret_id=self._hasher.secret_id,
            created_at=now,
            expires_at=now + life,
        )
        async with self._database.write(tenant_id) as session:
            if await TenantDirectory(session).tenant(tenant_id) is None:
                raise TenantNotFound(tenant_id)
            members = MemberRepository(session, tenant_id)
            await require_may_appoint(members, actor, role)
            if await members.by_email(email) is not None:
                raise NameTaken("email", email)
            for missing in sorted(set(places) - await members.live_projects(places)):
                raise ProjectNotFound(missing)
            await self._replace_pending(session, members, invite, actor)
            members.add_own(invite)
            details = {"email": email, "role": role, "projects": places}
            await AuditLog.record(session, tenant_id, actor, "invite.sent", ("invite", invite.id), details)
        return CreatedInvite(invite, made.plaintext)

    async def _replace_pending(
        self, session: WriteSession, members: MemberRepository, invite: Invite, actor: Actor
    ) -> None:
        for pending in await members.lock_pending_invites(invite.email):
            pending.deleted_at = invite.created_at
            await AuditLog.record(
                session,
                invite.tenant_id,
                actor,
                "invite.deleted",
                ("invite", pending.id),
                {"email": pending.email, "replaced_by": invite.id},
            )

    async def delete(self, tenant_id: str, invite_id: str, actor: Actor) -> None:
        """Deletes an invitation, which invalidates its token. Raises InviteNotFound, InviteAccepted."""
        async with self._database.write(tenant_id) as session:
            invite = await MemberRepository(session, tenant_id).invite(invite_id, lock=True)
            if invite is None:
                raise InviteNotFound(invite_id)
            if invite.accepted_at is not None:
                raise InviteAccepted(invite_id)
            invite.deleted_at = datetime.now(UTC)
            details = {"email": invite.email}
            await AuditLog.record(session, tenant_id, actor, "invite.deleted", ("invite", invite_id), details)

    async def accept(
        self,
        token: str,
        password: str,
        *,
        name: str = "",
        address: str | None = None,
        request_id: str | None = None,
    ) -> Membership:
        """Creates the invited user, with their roles in those of the projects that are not archived.

        Raises InviteInvalid if the token is not valid, for whatever reason; NameTaken if a user has the
        address meanwhile; ValueError naming the field.
        """
        tenant_id, digest = await self._find(self.digests(token))
        # Hashing is expensive, so it happens only once the token is known to exist.
        password_hash = await asyncio.to_thread(passwords.hash_password, password)
        try:
            return await self._accept(tenant_id, digest, name, password_hash, None, address, request_id)
        except IntegrityError as error:
            raise NameTaken("email", "of this invitation") from error

    def digests(self, token: str) -> tuple[bytes, ...]:
        """Returns the token's HMACs, to keep in the session while the user is at an identity provider: one
        for each key secret that is accepted. Raises InviteInvalid if the token is malformed.
        """
        if not keys.well_formed_invite(token):
            raise InviteInvalid
        return tuple(self._hasher.digests(token))

    async def accept_with_identity(
        self,
        digests: Collection[bytes],
        identity: ExternalIdentity,
        *,
        address: str | None = None,
        request_id: str | None = None,
    ) -> Membership:
        """Creates the invited user without a password: an identity provider has verified who they are, and
        that the invited address is theirs.

        Raises InviteInvalid; InviteAddressMismatch if the verified address is another or the provider has not
        verified it; NameTaken, also if the identity is linked to another user.
        """
        tenant_id, digest = await self._find(digests)
        name = identity.name if identity.name.isprintable() else ""
        try:
            return await self._accept(
                tenant_id, digest, name[:MAX_NAME_LEN], None, identity, address, request_id
            )
        except IntegrityError as error:
            raise NameTaken("email or identity", "of this invitation") from error

    async def _find(self, digests: Collection[bytes]) -> tuple[str, bytes]:
        """Returns the invitation's tenant, and the digest that it is stored with."""
        async with self._database.read(EVERY_TENANT) as reading:
            found = await TenantDirectory(reading).invite(digests)
        if found is None:
            raise InviteInvalid
        return found

    async def _accept(
        self,
        tenant_id: str,
        digest: bytes,
        name: str,
        password_hash: str | None,
        identity: ExternalIdentity | None,
        address: str | None,
        request_id: str | None,
    ) -> Membership:
        async with self._database.write(tenant_id) as session:
            members = MemberRepository(session, tenant_id)
            # Locked: of two simultaneous requests, the second finds it accepted.
            invite = await members.lock_invite_by_digest(digest)
            tenant: Tenant | None = await TenantDirectory(session).tenant(tenant_id)
            now = datetime.now(UTC)
            if (
                invite is None
                or invite.accepted_at is not None
                or invite.expires_at <= now
                or tenant is None
                or tenant.disabled_at is not None
            ):
                raise InviteInvalid
            if identity is not None and not (
                identity.email_verified and identity.email.lower() == invite.email
            ):
                raise InviteAddressMismatch
            invite.accepted_at = now
            user: User = new_user(tenant_id, invite.email, password_hash, invite.role, name)
            members.add_own(user)
            await session.flush()
            if identity is not None:
                members.add_own(new_identity(tenant_id, user.id, identity))
            places = sorted(await members.live_projects(invite.projects))
            for project_id in places:
                members.add_own(new_member(tenant_id, project_id, user.id, invite.projects[project_id]))
            actor = Actor("user", user.id, address, request_id, user_id=user.id, email=user.email)
            await AuditLog.record(
                session, tenant_id, actor, "invite.accepted", ("invite", invite.id), {"email": user.email}
            )
            await AuditLog.record(
                session,
                tenant_id,
                actor,
                "user.added",
                ("user", user.id),
                {"email": user.email, "role": user.role, "projects": places},
            )
        return account_of(user, tenant)
