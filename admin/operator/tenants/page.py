"""Gathers the tenants pages: the list with this month's usage, and one tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from adapters.catalogue import AdapterCatalogue
from admin.badge import Badge
from admin.operator.services import OperatorServices
from admin.web.form_errors import FieldError
from billing.customers.service import CustomerUse
from billing.invoices.accounts import BillingAccountView
from billing.invoices.credits import Balance
from billing.invoices.views import InvoiceView
from tenants.limits.kinds import Limit
from tenants.models import Tenant, User
from tenants.operators.directory import KeyCount, TenantFilter
from tenants.service import AccountServices
from tenants.views import PlanView

PAGE = 50
FIELDS = ("search", "plan", "standing")
STANDINGS = (
    ("", "Any"),
    ("active", "Active"),
    ("grace", "Payment overdue"),
    ("suspended", "Unpaid"),
    ("disabled", "Suspended"),
)
MEMBERS = INVOICES = ADAPTERS = 20
_STATES = {
    "active": Badge("Active", "good"),
    "grace": Badge("Overdue", "warn"),
    "suspended": Badge("Unpaid", "bad"),
}
SHUT_OUT = Badge("Suspended", "off")


@dataclass(frozen=True)
class TenantRow:
    """Of the list."""

    id: str
    name: str
    plan: str
    state: Badge
    use: CustomerUse


@dataclass(frozen=True)
class TenantList:
    rows: list[TenantRow]
    count: int
    """Of all that the filter lets pass."""
    spend: int
    """Of those shown."""
    next_after: str | None
    plans: list[tuple[str, str]]
    """To choose from."""


@dataclass(frozen=True)
class TenantPage:
    """Of one tenant."""

    tenant: Tenant
    state: Badge
    plan: PlanView
    plans: list[str]
    use: CustomerUse
    members: list[User]
    keys: list[KeyCount]
    limits: list[tuple[Limit, str]]
    """And whose it is, in words."""
    account: BillingAccountView
    balance: Balance
    invoices: list[InvoiceView]
    adapters: list[Any]


class TenantPages:
    """Gathers the pages."""

    def __init__(
        self,
        account: AccountServices,
        catalogue: AdapterCatalogue,
        operation: OperatorServices,
    ) -> None:
        self._account = account
        self._catalogue = catalogue
        self._directory = operation.directory
        self._customers = operation.customers

    async def list(self, wanted: TenantFilter, after: str | None) -> TenantList:
        """Raises DatabaseUnavailable."""
        found, count = await self._directory.page(wanted, after=after, limit=PAGE + 1)
        shown = found[:PAGE]
        uses = await self._customers.month([one.tenant.id for one in shown], datetime.now(UTC))
        rows = [
            TenantRow(one.tenant.id, one.tenant.name, one.plan, state_of(one.tenant), uses[one.tenant.id])
            for one in shown
        ]
        return TenantList(
            rows,
            count,
            sum(row.use.spend for row in rows),
            rows[-1].name if len(found) > PAGE else None,
            [("", "Any"), *((plan.name, plan.name) for plan in await self._account.plans.list())],
        )

    async def one(self, tenant_id: str) -> TenantPage:
        """Raises TenantNotFound, DatabaseUnavailable."""
        tenant = await self._account.tenants.find_tenant(tenant_id)
        organisation, customer, adapters = await asyncio.gather(
            self._directory.organisation(tenant, num_members=MEMBERS),
            self._customers.one(tenant.id, datetime.now(UTC), num_invoices=INVOICES),
            self._catalogue.adapters(tenant.id, limit=ADAPTERS),
        )
        return TenantPage(
            tenant,
            state_of(tenant),
            organisation.plan,
            organisation.plans,
            customer.use,
            organisation.members,
            organisation.keys,
            [(limit, _whose(limit)) for limit in organisation.limits],
            customer.account,
            customer.balance,
            customer.invoices,
            adapters,
        )


def state_of(tenant: Tenant) -> Badge:
    return SHUT_OUT if tenant.disabled_at is not None else _STATES[tenant.billing_state]


def read_filter(fields: Mapping[str, str]) -> TenantFilter:
    """Raises Refused."""
    given = {name: fields.get(name, "").strip() for name in FIELDS}
    for name, value in given.items():
        if len(value) > 200 or "\x00" in value:
            raise FieldError(name, "This value is too long or contains invalid characters.")
    if given["standing"] not in {name for name, _ in STANDINGS}:
        raise FieldError("standing", "Unknown status.")
    return TenantFilter(**given)  # type: ignore[arg-type]


def _whose(limit: Limit) -> str:
    whose = "Organization" if limit.scope == "tenant" else f"{limit.scope.capitalize()} {limit.scope_id}"
    return f"{whose}, on {limit.model}" if limit.model else whose
