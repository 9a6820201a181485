"""Finds the member that a verified assertion is about, and gives them the roles of their groups.

A member is known by the provider's id of them. The first time, the address decides, among the members of this
organization only: its owners have entered the provider, so its word on their members counts as theirs. The
provider cannot name members of other organizations, nor bring back members that were removed.
"""

from __future__ import annotations

import structlog
from sqlalchemy.exc import IntegrityError

from db.session import Database
from tenants.accounts import Membership, UserAccounts
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import LastOwner, NameTaken
from tenants.external_identity import ExternalIdentity
from tenants.identities.repository import IdentityRepository
from tenants.members.account import new_identity
from tenants.members.repository import MemberRepository
from tenants.provisioning.groups import GroupProvisioning
from tenants.provisioning.profiles import UserProfile
from tenants.provisioning.users import UserProvisioning
from tenants.saml.errors import SamlRefused
from tenants.saml.models import SamlConnection
from tenants.saml.repository import SamlRepository
from tenants.saml.statements import Assertion

log = structlog.get_logger(__name__)
_NOT_A_MEMBER = (
    "You are not a member of this organization. Ask an owner or an admin to add {0}, or to let single "
    "sign-on create members."
)
_DISABLED = "Your account in this organization is deactivated. Ask an owner or an admin to reactivate it."
_REMOVED = "{0} was removed from this organization. Ask an owner or an admin to add it again."
_ELSEWHERE = "{0} is in use in another organization of this service, or as another member's user name."
_LINKED = (
    "{0} is connected to another user of the identity provider. If the NameID was changed there, disconnect "
    "single sign-on in your account settings, or ask an owner to delete and configure SAML again."
)
_NO_EMAIL = (
    "The assertion has no email address. Send it as the attribute “email”, or as a NameID of the format "
    "emailAddress."
)


class SamlSignIn:
    """Signs in members of all organizations."""

    def __init__(
        self,
        database: Database,
        accounts: UserAccounts,
        users: UserProvisioning,
        groups: GroupProvisioning,
    ) -> None:
        self._database = database
        self._accounts = accounts
        self._users = users
        self._groups = groups

    async def member(
        self,
        connection: SamlConnection,
        assertion: Assertion,
        *,
        address: str | None,
        request_id: str | None,
    ) -> Membership:
        """Returns the member, with the role of their groups. Raises SamlRefused."""
        actor = Actor("saml_connection", connection.id, address, request_id, email=assertion.email or None)
        user_id = await self._linked(connection, assertion)
        if user_id is None:
            user_id = await self._link(connection, assertion, actor)
        if assertion.groups is not None:
            try:
                await self._groups.set_groups_of(connection.tenant_id, user_id, assertion.groups, actor)
            except LastOwner:
                log.warning("groups would take the last owner's role", tenant=connection.tenant_id)
        account = await self._accounts.find(user_id, connection.tenant_id)
        if account is None:
            raise SamlRefused(_DISABLED)
        return account

    async def _linked(self, connection: SamlConnection, assertion: Assertion) -> str | None:
        """Returns the user that the provider's id is linked to. Raises SamlRefused if they cannot sign in."""
        tenant_id = connection.tenant_id
        async with self._database.read(tenant_id) as session:
            found = await SamlRepository(session, tenant_id).identity(connection.issuer, assertion.subject)
            user = None if found is None else await MemberRepository(session, tenant_id).find(found.user_id)
        if user is None:
            return None
        if user.disabled_at is not None:
            raise SamlRefused(_DISABLED)
        return user.id

    async def _link(self, connection: SamlConnection, assertion: Assertion, actor: Actor) -> str:
        """Links the provider's id to the member with the address, who is created if that is allowed. Raises
        SamlRefused.
        """
        if not assertion.email:
            raise SamlRefused(_NO_EMAIL)
        user_id = await self._bound(connection, assertion, actor)
        if user_id is None:
            await self._create(connection, assertion, actor)
            user_id = await self._bound(connection, assertion, actor)
        if user_id is None:
            raise SamlRefused(_NOT_A_MEMBER.format(assertion.email))
        return user_id

    async def _bound(self, connection: SamlConnection, assertion: Assertion, actor: Actor) -> str | None:
        tenant_id, email = connection.tenant_id, assertion.email
        identity = ExternalIdentity(connection.issuer, assertion.subject, email, True, assertion.name)
        try:
            async with self._database.write(tenant_id) as session:
                members = MemberRepository(session, tenant_id)
                found = await members.by_email(email)
                user = None if found is None else await members.lock(found.id)
                if user is None or user.email != email:
                    return None
                if user.disabled_at is not None:
                    raise SamlRefused(_DISABLED)
                identities = IdentityRepository(session, tenant_id)
                if any(one.issuer == connection.issuer for one in await identities.identities(user.id)):
                    raise SamlRefused(_LINKED.format(email))
                linked = new_identity(tenant_id, user.id, identity)
                identities.add_own(linked)
                details = {"issuer": connection.entity_id, "email": email}
                await AuditLog.record(session, tenant_id, actor, "identity.added", ("user", user.id), details)
        except IntegrityError as error:
            raise SamlRefused("Two sign-ins of this user arrived at once. Sign in again.") from error
        return user.id

    async def _create(self, connection: SamlConnection, assertion: Assertion, actor: Actor) -> None:
        """Creates a member as SCIM does. Raises SamlRefused."""
        tenant_id, email = connection.tenant_id, assertion.email
        if not connection.creates_members:
            raise SamlRefused(_NOT_A_MEMBER.format(email))
        async with self._database.read(tenant_id) as session:
            if await SamlRepository(session, tenant_id).was_removed(email):
                raise SamlRefused(_REMOVED.format(email))
        profile = UserProfile(
            email, display_name=assertion.name or None, emails=({"value": email, "primary": True},)
        )
        try:
            await self._users.create(tenant_id, profile, actor)
        except NameTaken as error:
            raise SamlRefused(_ELSEWHERE.format(email)) from error
