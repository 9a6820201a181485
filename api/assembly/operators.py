"""Constructs the services behind the operator's pages."""

from __future__ import annotations

import redis.asyncio

from adapters.jobs.overview import JobOverview
from adapters.name_cache import AdapterNameCache
from admin.operator.engines.report import Engines
from admin.operator.services import OperatorServices
from billing.customers.service import CustomerReports
from billing.previews.service import PricePreviews
from billing.pricing import PriceService
from billing.reconciliation.comparing import Comparisons
from billing.reconciliation.service import ReconciliationService
from billing.reports.margin import MarginReports
from billing.reports.margin_runs import MarginRuns
from db.outbox import Outbox
from db.session import Database
from sla.capacity.reading import CapacityReports
from sla.failures import FailureCounts
from sla.incidents.burning import ServiceBurn
from sla.incidents.service import Incidents
from sla.status.sampling import KnownComponents
from tenants.operators.directory import TenantSearch
from tenants.operators.impersonation import Impersonations
from tenants.operators.service import OperatorAccounts


def operator_services(
    database: Database, cache: redis.asyncio.Redis, outbox: Outbox, engines: Engines
) -> OperatorServices:
    """Returns the services on one database."""
    return OperatorServices(
        accounts=OperatorAccounts(database, cache),
        impersonations=Impersonations(database),
        engines=engines,
        adapter_names=AdapterNameCache(database),
        directory=TenantSearch(database),
        customers=CustomerReports(database),
        failures=FailureCounts(database),
        prices=PriceService(database, cache),
        previews=PricePreviews(database),
        margins=MarginRuns(MarginReports(database), cache),
        jobs=JobOverview(database),
        books=ReconciliationService(database, cache),
        comparing=Comparisons(database, cache, outbox),
        incidents=Incidents(database),
        burn=ServiceBurn(database),
        components=KnownComponents(cache),
        capacity=CapacityReports(database, cache),
    )
