"""Builds the console over the API's own services, with the same error messages."""

from __future__ import annotations

import redis.asyncio

from admin.app import BillingServices, ConsoleServices, ErrorMapping, create_console
from admin.operator.services import OperatorServices
from admin.sign_in.services import SignInServices
from api.batches.endpoints import ENDPOINTS
from api.edge import AsgiApp
from api.errors import ERROR_RESPONSES, envelope, response_for
from api.organization.scopes import SCOPES
from api.playground import Playground
from api.services import Services
from db.session import Database
from tenants.object_names import NameService
from tenants.refusals.service import RefusedRequests
from tenants.user_contexts import UserContexts

ERROR_MAPPING = ErrorMapping(
    tuple(ERROR_RESPONSES), lambda error: (response_for(error).status, envelope(error))
)


def console_over(
    database: Database,
    cache: redis.asyncio.Redis,
    services: Services,
    billing: BillingServices,
    operation: OperatorServices,
    sign_in: SignInServices,
) -> AsgiApp:
    """Returns the console's application, to be mounted. `services` must have accounts and onboarding."""
    accounts, onboarding = services.accounts, services.onboarding
    assert accounts is not None
    assert onboarding is not None
    assert services.batches is not None
    assert services.token_exchange is not None
    assert services.retention is not None

    def base_digest(base: str) -> str:
        return services.pools[base].info().base_digest

    return create_console(
        ConsoleServices(
            redis=cache,
            accounts=accounts.users,
            account=accounts,
            scopes=SCOPES,
            names=NameService(database),
            usage=services.usage,
            files=services.files,
            uploads=services.uploads,
            batches=services.batches,
            retention=services.retention,
            batch_endpoints=tuple(ENDPOINTS),
            adapters=onboarding,
            models=services.models,
            playground=Playground(services, UserContexts(database)),
            sla=services.sla_reports,
            refused=RefusedRequests(database),
            billing=billing,
            operation=operation,
            base_digest=base_digest,
            error_mapping=ERROR_MAPPING,
            sign_in=sign_in,
            check_issuer_url=services.token_exchange.published.check_url,
        )
    )
