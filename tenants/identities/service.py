"""Connects identities of external providers (OpenID Connect) to users, and finds users by them.

Every method is one transaction. An identity belongs to one user, who links it while signed in; a matching
email address alone links it only to a user whom SCIM created and who has no other way to sign in. Verifying
the provider's claims is in the console.
"""

from __future__ import annotations

from sqlalchemy.exc import IntegrityError

from db.session import EVERY_TENANT, Database
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import IdentityNotFound, IdentityTaken, LastSignInMethod, UserNotFound
from tenants.external_identity import ExternalIdentity
from tenants.identities.repository import IdentityRepository
from tenants.members.account import Membership, account_of, new_identity
from tenants.members.repository import MemberRepository
from tenants.models import Identity
from tenants.provisioning.repository import ProvisioningRepository
from tenants.repository import TenantDirectory
from tenants.validation import is_email


class Identities:
    """External identities of all tenants' users."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, identity: ExternalIdentity) -> Membership | None:
        """Returns the user with this identity; None if there is none who can sign in."""
        if "\x00" in identity.issuer + identity.subject:
            return None
        async with self._database.read(EVERY_TENANT) as session:
            found = await TenantDirectory(session).user_by_identity(identity.issuer, identity.subject)
        if found is None:
            return None
        user, tenant, factor_since = found
        if user.disabled_at is not None or tenant.disabled_at is not None:
            return None
        return account_of(user, tenant, has_second_factor=factor_since is not None)

    async def link_provisioned(
        self, identity: ExternalIdentity, actor_address: str | None
    ) -> Membership | None:
        """Links an identity to the user whom an identity provider created (SCIM) with its verified address,
        and who has no way to sign in yet; returns the user. None if there is no such user.
        """
        if not identity.email_verified or not is_email(identity.email):
            return None
        async with self._database.read(EVERY_TENANT) as reading:
            found = await TenantDirectory(reading).user_by_email(identity.email)
        if found is None or found[1].disabled_at is not None:
            return None
        tenant = found[1]
        try:
            async with self._database.write(tenant.id) as session:
                user = await MemberRepository(session, tenant.id).lock(found[0].id)
                row = await ProvisioningRepository(session, tenant.id).row(found[0].id)
                identities = IdentityRepository(session, tenant.id)
                if user is None or user.disabled_at is not None or user.email != identity.email.lower():
                    return None
                if row is None or not row.is_created_here or user.password_hash is not None:
                    return None
                if await identities.identities(user.id):
                    return None
                linked = new_identity(tenant.id, user.id, identity)
                identities.add_own(linked)
                actor = Actor("user", user.id, actor_address, user_id=user.id, email=user.email)
                details = {"issuer": identity.issuer, "email": linked.email}
                await AuditLog.record(session, tenant.id, actor, "identity.added", ("user", user.id), details)
        except IntegrityError:
            return None  # another request linked it
        return account_of(user, tenant)

    async def list(self, account: Membership) -> list[Identity]:
        async with self._database.read(account.tenant_id) as session:
            return [*await IdentityRepository(session, account.tenant_id).identities(account.user_id)]

    async def bind(self, account: Membership, identity: ExternalIdentity, actor: Actor) -> None:
        """Links an identity to the signed-in user. Repeating it changes nothing. Raises IdentityTaken if
        another user, of any tenant, has it.
        """
        try:
            async with self._database.write(account.tenant_id) as session:
                if await MemberRepository(session, account.tenant_id).hold(account.user_id) is None:
                    raise UserNotFound(account.user_id)
                identities = IdentityRepository(session, account.tenant_id)
                theirs = {(one.issuer, one.subject) for one in await identities.identities(account.user_id)}
                if (identity.issuer, identity.subject) in theirs:
                    return
                row = new_identity(account.tenant_id, account.user_id, identity)
                identities.add_own(row)
                details = {"issuer": identity.issuer, "email": row.email}
                await AuditLog.record(
                    session, account.tenant_id, actor, "identity.added", ("user", account.user_id), details
                )
        except IntegrityError as error:
            raise IdentityTaken(identity.issuer) from error

    async def unbind(self, account: Membership, identity_id: str, actor: Actor) -> None:
        """Unlinks an identity. Raises IdentityNotFound; LastSignInMethod if it is the user's only way to sign
        in.
        """
        async with self._database.write(account.tenant_id) as session:
            user = await MemberRepository(session, account.tenant_id).lock(account.user_id)
            identities = IdentityRepository(session, account.tenant_id)
            row = await identities.identity(account.user_id, identity_id)
            if user is None or row is None:
                raise IdentityNotFound(identity_id)
            if user.password_hash is None and len(await identities.identities(account.user_id)) == 1:
                raise LastSignInMethod
            await identities.drop_identity(row.id)
            details = {"issuer": row.issuer, "email": row.email}
            await AuditLog.record(
                session, account.tenant_id, actor, "identity.removed", ("user", account.user_id), details
            )
