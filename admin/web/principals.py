"""Represents the signed-in user of a request: a tenant's user, an operator acting for one, or an operator."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.requests import Request

from admin.web.request_info import request_id_of
from admin.web.sessions import OpenSession, Session
from billing.invoices.accounts import BillingAccountView as BillingAccount
from tenants.accounts import Membership
from tenants.actors import Actor
from tenants.roles import Right


@dataclass(frozen=True)
class _SignedIn:
    """What both have."""

    account: Membership
    opened: OpenSession

    @property
    def session(self) -> Session:
        return self.opened.session

    @property
    def csrf_token(self) -> str:
        """What the forms of their pages carry."""
        return self.session.csrf_token


@dataclass(frozen=True)
class Operator(_SignedIn):
    """A signed-in operator, whose pages are those of the service."""

    overdue: None = None
    """Operator console owes itself nothing."""

    @property
    def may_change(self) -> bool:
        """Others look on."""
        return self.account.role == "owner"

    @property
    def place(self) -> str:
        return "Operator console"

    @property
    def role(self) -> str:
        return "operator" if self.may_change else "read-only operator"

    def acting(self, request: Request) -> Actor:
        """For the audit log."""
        address, request_id = _origin(request)
        account = self.account
        return Actor("operator", account.user_id, address, request_id, email=account.email)


@dataclass(frozen=True)
class TenantUser(_SignedIn):
    """A signed-in user of a tenant, or an operator in that user's place."""

    operator: Membership | None = None
    """Who it is in truth. None: the user."""
    overdue: BillingAccount | None = None
    """How the tenant stands when a payment of its is overdue: every page tells."""

    @property
    def tenant_id(self) -> str:
        return self.account.tenant_id

    @property
    def place(self) -> str:
        return self.account.tenant_name

    @property
    def role(self) -> str:
        return self.account.role

    @property
    def is_read_only(self) -> bool:
        """Whether this is an operator with read-only access."""
        taken, operator = self.session.impersonation, self.operator
        if operator is None:
            return False
        return taken is None or not taken.is_full or operator.role != "owner"

    @property
    def until(self) -> datetime | None:
        """When an operator is out again."""
        taken = self.session.impersonation
        return None if taken is None else datetime.fromtimestamp(taken.ends_at, UTC)

    def acting(self, request: Request) -> Actor:
        """For the audit log: of an operator both who it was and whom for, bounded by what that user may."""
        address, request_id = _origin(request)
        actor = self.account.actor(address, request_id)
        if self.operator is None:
            return actor
        real = self.operator
        return Actor(
            "operator", real.user_id, address, request_id, actor.scopes, self.account.user_id, real.email
        )

    def may(self, right: Right) -> bool:
        if self.is_read_only and not right.endswith(".read"):
            return False
        return self.account.may(right)

    @property
    def is_admin(self) -> bool:
        return self.may("members.write")


Principal = TenantUser | Operator


def _origin(request: Request) -> tuple[str | None, str | None]:
    """Address and id of a request."""
    address = None if request.client is None else request.client.host
    return address, request_id_of(request)
