"""Gathers the page of one tenant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from adapters.catalogue import AdapterCatalogue
from admin.badge import Badge
from admin.operator.services import OperatorServices
from admin.operator.tenants.state import state_of
from billing.customers.service import CustomerUse
from billing.invoices.accounts import BillingAccountView
from billing.invoices.credits import Balance
from billing.invoices.views import InvoiceView
from telemetry.tasks import gather_all
from tenants.limits.kinds import Limit
from tenants.models import Tenant, User
from tenants.operators.directory import KeyCount
from tenants.service import AccountServices
from tenants.views import PlanView

MEMBERS = INVOICES = ADAPTERS = 20


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
    """Gathers the page."""

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

    async def one(self, tenant_id: str) -> TenantPage:
        """Raises TenantNotFound, DatabaseUnavailable."""
        tenant = await self._account.tenants.find_tenant(tenant_id)
        organisation, customer, adapters = await gather_all(
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


def _whose(limit: Limit) -> str:
    whose = "Organization" if limit.scope == "tenant" else f"{limit.scope.capitalize()} {limit.scope_id}"
    return f"{whose}, on {limit.model}" if limit.model else whose
