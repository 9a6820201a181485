"""Lists the services that the operator's pages call."""

from __future__ import annotations

from dataclasses import dataclass

from adapters.jobs.overview import JobOverview
from adapters.name_cache import AdapterNameCache
from admin.operator.engines.report import Engines
from billing.customers.service import CustomerReports
from billing.previews.service import PricePreviews
from billing.pricing import PriceService
from billing.reconciliation.comparing import Comparisons
from billing.reconciliation.service import ReconciliationService
from billing.reports.margin_runs import MarginRuns
from sla.capacity.reading import CapacityReports
from sla.failures import FailureCounts
from sla.incidents.burning import ServiceBurn
from sla.incidents.service import Incidents
from sla.status.sampling import KnownComponents
from tenants.operators.directory import TenantSearch
from tenants.operators.impersonation import Impersonations
from tenants.operators.service import OperatorAccounts


@dataclass(frozen=True)
class OperatorServices:
    """Built by the API process."""

    accounts: OperatorAccounts
    impersonations: Impersonations
    engines: Engines
    adapter_names: AdapterNameCache
    directory: TenantSearch
    customers: CustomerReports
    failures: FailureCounts
    prices: PriceService
    previews: PricePreviews
    margins: MarginRuns
    jobs: JobOverview
    books: ReconciliationService
    comparing: Comparisons
    incidents: Incidents
    burn: ServiceBurn
    components: KnownComponents
    capacity: CapacityReports
