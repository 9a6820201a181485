"""Defines a console user's membership in a tenant, and creates the rows of users and identities."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from db.base import new_id
from tenants.actors import Actor
from tenants.external_identity import ExternalIdentity
from tenants.models import OPERATOR_TENANT, Identity, Tenant, User
from tenants.roles import Right, Role, admin_scopes, may
from tenants.validation import MAX_NAME_LEN, is_printable
from tenants.views import STANDARD, PlanView


@dataclass(frozen=True, slots=True)
class Membership:
    """A user and the tenant they belong to."""

    user_id: str
    email: str
    role: Role
    tenant_id: str
    tenant_name: str
    plan: PlanView = STANDARD
    """Set by `UserAccounts.find`, as of that time; otherwise the standard plan."""
    name: str = ""
    has_password: bool = True
    """If not, the user can only sign in with an external identity."""
    has_second_factor: bool = False
    needs_second_factor: bool = False
    """Whether the user's tenant requires a second factor."""
    sessions_from: datetime | None = None
    """Console sessions that began before this time are invalid."""
    billing_state: str = "active"
    """Or `grace`, `suspended`: whether the tenant pays."""

    @property
    def must_enrol(self) -> bool:
        """Whether the user has to enrol a second factor before doing anything else."""
        return self.needs_second_factor and not self.has_second_factor

    @property
    def is_operator(self) -> bool:
        """Whether the user is an operator of the service, not a member of a tenant."""
        return self.tenant_id == OPERATOR_TENANT

    def may(self, right: Right) -> bool:
        return may(self.role, right)

    def actor(self, address: str | None = None, request_id: str | None = None) -> Actor:
        """Returns the user as an actor, with the scopes of their role."""
        scopes = admin_scopes(self.role)
        return Actor("user", self.user_id, address, request_id, scopes, self.user_id, self.email)


def new_user(tenant_id: str, email: str, password_hash: str | None, role: str, name: str) -> User:
    """Returns a new row. Raises ValueError naming the field."""
    if len(name) > MAX_NAME_LEN or not is_printable(name):
        raise ValueError(f"name must have at most {MAX_NAME_LEN} printable characters")
    return User(
        id=new_id("usr"),
        tenant_id=tenant_id,
        email=email,
        name=name.strip(),
        password_hash=password_hash,
        role=role,
        created_at=datetime.now(UTC),
    )


def new_identity(tenant_id: str, user_id: str, identity: ExternalIdentity) -> Identity:
    """Returns a new row."""
    return Identity(
        id=new_id("ident"),
        tenant_id=tenant_id,
        user_id=user_id,
        issuer=identity.issuer,
        subject=identity.subject,
        email=identity.email.lower()[:254],
        created_at=datetime.now(UTC),
    )


def account_of(
    user: User, tenant: Tenant, plan: PlanView = STANDARD, *, has_second_factor: bool = False
) -> Membership:
    role: Role = user.role  # type: ignore[assignment]
    return Membership(
        user.id,
        user.email,
        role,
        tenant.id,
        tenant.name,
        plan,
        name=user.name,
        has_password=user.password_hash is not None,
        has_second_factor=has_second_factor,
        needs_second_factor=bool(tenant.second_factor_required),
        sessions_from=user.sessions_from,
        billing_state=tenant.billing_state,
    )
