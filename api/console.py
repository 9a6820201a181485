"""The console over the API's own services: the same adapters, the same engine, the same words for errors.

Owns that it is put together. Refuses to know its pages.
"""

from __future__ import annotations

import redis.asyncio

from adapters.files.service import FileService, UploadService
from adapters.resolver import ModelResolver
from admin.app import BillingServices, ConsoleServices, ErrorMapping, create_console
from admin.operator.services import OperatorServices
from admin.sign_in.services import SignInServices
from api.edge import AsgiApp
from api.errors import FACES, envelope, face_of
from api.onboarding import Onboarding
from api.organization.scopes import SCOPES
from api.playground import Playground
from billing.service import UsageReports
from engine.client import EngineClient, EngineGone
from sla.service import SlaReports
from tenants.naming import NameService
from tenants.service import AccountServices

ERROR_MAPPING = ErrorMapping(tuple(FACES), lambda error: (face_of(error).status, envelope(error)))


def console_over(
    cache: redis.asyncio.Redis,
    account: AccountServices,
    names: NameService,
    usage: UsageReports,
    files: FileService,
    uploads: UploadService,
    onboarding: Onboarding,
    models: ModelResolver,
    playground: Playground,
    sla: SlaReports,
    billing: BillingServices,
    operation: OperatorServices,
    sign_in: SignInServices,
    engine: EngineClient,
) -> AsgiApp:
    """The console, to be mounted."""

    def base_digest() -> str:
        if engine.info is None or not engine.ready:
            raise EngineGone("the engine does not serve", engine.ready_in)
        return engine.info.base_digest

    return create_console(
        ConsoleServices(
            redis=cache,
            accounts=account.users,
            account=account,
            scopes=SCOPES,
            names=names,
            usage=usage,
            files=files,
            uploads=uploads,
            adapters=onboarding,
            models=models,
            playground=playground,
            sla=sla,
            billing=billing,
            operation=operation,
            base_digest=base_digest,
            error_mapping=ERROR_MAPPING,
            sign_in=sign_in,
        )
    )
