"""A user as the console and the services know them: who they are, whose they are, what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from db.base import new_id
from tenants.actors import Actor
from tenants.external_identity import ExternalIdentity
from tenants.fields import MAX_NAME_LEN
from tenants.models import OPERATOR_TENANT, Identity, Tenant, User
from tenants.roles import Right, Role, admin_scopes, may
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
    """As of when it was looked up by `find`."""
    name: str = ""
    has_password: bool = True
    """Not: an identity of another provider lets them in, and nothing else."""
    has_second_factor: bool = False
    needs_second_factor: bool = False
    """Their tenant asks for one."""
    sessions_from: datetime | None = None
    """Console sessions that began before are over."""
    billing_state: str = "active"
    """Or `grace`, `suspended`: whether the tenant pays."""

    @property
    def must_enrol(self) -> bool:
        """Has to set up a second factor before anything else."""
        return self.needs_second_factor and not self.has_second_factor

    @property
    def is_operator(self) -> bool:
        """Of the service, and nobody's member."""
        return self.tenant_id == OPERATOR_TENANT

    def may(self, right: Right) -> bool:
        return may(self.role, right)

    def actor(self, address: str | None = None, request_id: str | None = None) -> Actor:
        """As the audit log names them, and bounded by their role."""
        scopes = admin_scopes(self.role)
        return Actor("user", self.user_id, address, request_id, scopes, self.user_id, self.email)


def new_user(tenant_id: str, email: str, password_hash: str | None, role: str, name: str) -> User:
    """A row. Raises ValueError naming the field."""
    if len(name) > MAX_NAME_LEN or (name and not name.isprintable()):
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


def new_identity(tenant_id: str, user_id: str, vouched: ExternalIdentity) -> Identity:
    """A row."""
    return Identity(
        id=new_id("ident"),
        tenant_id=tenant_id,
        user_id=user_id,
        issuer=vouched.issuer,
        subject=vouched.subject,
        email=vouched.email.lower()[:254],
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
