"""The services behind the operator's pages. Owns that they are put together."""

from __future__ import annotations

import redis.asyncio

from adapters.naming import AdapterNames
from admin.operator.engines import Engines
from admin.operator.services import OperatorServices
from db.session import Database
from tenants.operators.impersonation import Impersonations
from tenants.operators.service import OperatorAccounts


def operator_services(database: Database, cache: redis.asyncio.Redis, engines: Engines) -> OperatorServices:
    """On one database."""
    return OperatorServices(
        accounts=OperatorAccounts(database, cache),
        impersonations=Impersonations(database),
        engines=engines,
        adapter_names=AdapterNames(database),
    )
