"""Manages tenants, and constructs all account services.

Every method is one transaction. Resolver caches are invalidated after the commit, within a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import redis.asyncio
from sqlalchemy.exc import IntegrityError

from db.base import new_id
from db.session import EVERY_TENANT, Database
from tenants.accounts import Membership, UserAccounts
from tenants.actors import OPERATOR, SYSTEM, Actor
from tenants.audit.service import AuditLog
from tenants.data_retention import DataRetention
from tenants.errors import NameTaken, TenantNotFound
from tenants.identities.credentials import Credentials
from tenants.identities.second_factors import SecondFactors
from tenants.identities.service import Identities
from tenants.key_secrets import KeySecrets
from tenants.key_service import CreatedKey, KeyService
from tenants.members.invites import InviteService
from tenants.members.service import MemberService
from tenants.models import OPERATOR_TENANT, Tenant
from tenants.plans import PlanService
from tenants.projects.service import DEFAULT_NAME, ProjectService, add_project, new_project
from tenants.projects.service_accounts import ServiceAccountService
from tenants.provisioning.groups import GroupProvisioning
from tenants.provisioning.tokens import ScimTokens
from tenants.provisioning.users import UserProvisioning
from tenants.quotas.service import LimitService
from tenants.repository import KeyRepository, TenantDirectory
from tenants.resolver import KeyResolver, publish_key_changes
from tenants.retention.errors import DeletionBegun
from tenants.retention.repository import DeletionRepository
from tenants.saml.service import SamlConnections
from tenants.saml.sign_in import SamlSignIn
from tenants.signing_keys.service import SigningKeys
from tenants.validation import checked_name
from tenants.workload_identity.service import WorkloadIdentities

__all__ = [
    "OPERATOR",
    "SYSTEM",
    "AccountServices",
    "Actor",
    "CreatedKey",
    "KeyResolver",
    "Membership",
    "TenantService",
    "UserAccounts",
    "account_services",
]


class TenantService:
    """Tenants and their default projects, for the operator."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def create_tenant(self, name: str, actor: Actor = OPERATOR) -> Tenant:
        """Creates a tenant with its default project. Raises NameTaken, ValueError if the name is not
        printable.
        """
        tenant = Tenant(id=new_id("tnt"), name=checked_name("name", name), created_at=datetime.now(UTC))
        try:
            async with self._database.write(tenant.id) as session:
                TenantDirectory(session).add(tenant)
                await session.flush()
                await AuditLog.record(
                    session,
                    tenant.id,
                    actor,
                    "organization.created",
                    ("organization", tenant.id),
                    {"name": tenant.name},
                )
                await add_project(session, new_project(tenant.id, DEFAULT_NAME, is_default=True), actor)
        except IntegrityError as error:
            raise NameTaken("tenant name", name) from error
        return tenant

    async def find_tenant(self, id_or_name: str) -> Tenant:
        """Returns the tenant with this id or name. Raises TenantNotFound."""
        async with self._database.read(EVERY_TENANT) as session:
            directory = TenantDirectory(session)
            found = await directory.tenant(id_or_name) or await directory.tenant_by_name(id_or_name)
        if found is None or found.id == OPERATOR_TENANT:
            raise TenantNotFound(id_or_name)
        return found

    async def list_tenants(self) -> list[Tenant]:
        async with self._database.read(EVERY_TENANT) as session:
            return await TenantDirectory(session).tenants()

    async def set_tenant_disabled(self, tenant_id: str, disabled: bool, actor: Actor = OPERATOR) -> None:
        """Disables or enables all keys and users of a tenant, within a second. Repeating it changes nothing.
        Raises TenantNotFound; DeletionBegun for an organization that is deleted.
        """
        async with self._database.write(tenant_id) as session:
            if not disabled and await DeletionRepository(session, tenant_id).any("organization"):
                raise DeletionBegun(tenant_id)
            changed = await TenantDirectory(session).set_disabled(tenant_id, disabled)
            if changed is None:
                raise TenantNotFound(tenant_id)
            digests = await KeyRepository(session, tenant_id).digests()
            session.after_commit(lambda: publish_key_changes(self._redis, digests))
            if changed:
                await AuditLog.record(
                    session,
                    tenant_id,
                    actor,
                    "organization.updated",
                    ("organization", tenant_id),
                    {"disabled": disabled},
                )


@dataclass(frozen=True, slots=True)
class AccountServices:
    """All services that manage accounts."""

    tenants: TenantService
    plans: PlanService
    projects: ProjectService
    members: MemberService
    invites: InviteService
    service_accounts: ServiceAccountService
    keys: KeyService
    users: UserAccounts
    second_factors: SecondFactors
    credentials: Credentials
    identities: Identities
    audit: AuditLog
    limits: LimitService
    data_retention: DataRetention
    scim_tokens: ScimTokens
    provisioned_users: UserProvisioning
    provisioned_groups: GroupProvisioning
    saml_connections: SamlConnections
    saml_sign_in: SamlSignIn
    workload_identities: WorkloadIdentities
    signing_keys: SigningKeys


def account_services(
    database: Database, redis_client: redis.asyncio.Redis, secret: str | KeySecrets
) -> AccountServices:
    """Returns the services on one database. `secret` is the server's, under which keys and tokens are
    stored.
    """
    key_service = KeyService(database, redis_client, secret)
    users = UserAccounts(database)
    provisioned_users = UserProvisioning(database, redis_client)
    provisioned_groups = GroupProvisioning(database, redis_client)
    return AccountServices(
        tenants=TenantService(database, redis_client),
        plans=PlanService(database, redis_client),
        projects=ProjectService(database, redis_client),
        members=MemberService(database, redis_client),
        invites=InviteService(database, secret),
        service_accounts=ServiceAccountService(database, redis_client),
        keys=key_service,
        users=users,
        second_factors=SecondFactors(database, secret),
        credentials=Credentials(database, secret),
        identities=Identities(database),
        audit=AuditLog(database),
        limits=LimitService(database, redis_client),
        data_retention=DataRetention(database, redis_client),
        scim_tokens=ScimTokens(database, secret),
        provisioned_users=provisioned_users,
        provisioned_groups=provisioned_groups,
        saml_connections=SamlConnections(database),
        saml_sign_in=SamlSignIn(database, users, provisioned_users, provisioned_groups),
        workload_identities=WorkloadIdentities(database, redis_client, key_service),
        signing_keys=SigningKeys(database),
    )
