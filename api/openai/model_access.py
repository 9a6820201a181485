"""Resolves the model of a request, if the caller's key may use it."""

from __future__ import annotations

from adapters.model_names import ADAPTER_ID
from adapters.resolver import ResolvedModel
from api.errors import InsufficientPermissions
from api.services import Services
from tenants.context import TenantContext


async def permitted_model(services: Services, caller: TenantContext, name: str) -> ResolvedModel:
    """Returns the model that `name` stands for.

    A name that the key may not use is refused before it is looked up. An adapter id is checked by the name
    that it resolves to, and a name without a version by its version.

    Raises:
        InsufficientPermissions: the key's list of models lacks this one.
        ModelNotFound, ModelNotReady: as `ModelResolver.resolve` raises them.
    """
    if ADAPTER_ID.fullmatch(name) is None:
        _check(caller, name)
    model = await services.models.resolve(caller.tenant_id, name)
    _check(caller, model.name)
    return model


def _check(caller: TenantContext, name: str) -> None:
    if not caller.may_use(name):
        raise InsufficientPermissions(f"This API key may not use the model '{name}'.", "model")
