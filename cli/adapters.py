"""Manages tenants' adapters for the operator's commands; `cli.service_access` packs and adds new ones.

Each command makes one call to the services.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cli.service_access import Services, call, minute

if TYPE_CHECKING:
    from adapters.catalogue import AdapterCatalogue, AdapterWithVersion
    from adapters.models import AdapterEvent, AdapterVersion
    from adapters.pinning import Pinning
    from adapters.service import AdapterService

_ENGINE_ANSWER_S = 2.0
_PAGE = 100


def list_adapters(data: Path | None, tenant: str) -> list[tuple[str, ...]]:
    """Returns rows of model, state, active version, rank, creation time, id."""

    async def work(services: Services) -> list[tuple[str, ...]]:
        owner = await services.accounts.tenants.find_tenant(tenant)
        catalogue = _catalogue(services)
        rows: list[tuple[str, ...]] = []
        after: str | None = None
        while True:
            page = await catalogue.adapters(owner.id, after=after, limit=_PAGE, newest_first=False)
            rows += [_row(shown) for shown in page]
            if len(page) < _PAGE:
                return rows
            after = page[-1].adapter.id

    return call(data, work)


def _row(shown: AdapterWithVersion) -> tuple[str, ...]:
    adapter, version = shown.adapter, shown.version
    return (
        f"{adapter.base}:{adapter.name}",
        _state(shown),
        str(adapter.active_version or "-"),
        str((version and version.rank) or "-"),
        minute(adapter.created_at),
        adapter.id,
    )


def _state(shown: AdapterWithVersion) -> str:
    if shown.adapter.disabled_at is not None:
        return "disabled"
    return shown.version.state if shown.version is not None else "-"


def show_adapter(
    data: Path | None, tenant: str, name: str
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Returns the latest versions (number, state, rank, dtype, created, digest, reason) and events (time,
    type, message).
    """

    async def work(services: Services) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
        owner = await services.accounts.tenants.find_tenant(tenant)
        catalogue = _catalogue(services)
        shown, versions = await catalogue.versions(owner.id, name, limit=_PAGE, newest_first=True)
        events = await catalogue.events(owner.id, name, limit=20)
        active = shown.adapter.active_version
        return [_version_row(version, active) for version in reversed(versions)], [
            _event_row(event) for event in reversed(events)
        ]

    return call(data, work)


def _version_row(version: AdapterVersion, active: int | None) -> tuple[str, ...]:
    mark = "*" if version.version == active else ""
    return (
        f"{version.version}{mark}",
        version.state,
        str(version.rank or "-"),
        version.dtype or "-",
        minute(version.created_at),
        (version.digest or "-")[:12],
        " ".join((version.error or version.override_reason or "-").split()),
    )


def _event_row(event: AdapterEvent) -> tuple[str, ...]:
    return (minute(event.created_at), event.type, event.message)


def activate_adapter(data: Path | None, tenant: str, name: str, version: int) -> str:
    """Returns the model name that is served now."""
    from tenants.actors import OPERATOR

    return _change(data, tenant, lambda adapters, owner: adapters.activate(owner, name, version, by=OPERATOR))


def rollback_adapter(data: Path | None, tenant: str, name: str) -> str:
    from tenants.actors import OPERATOR

    return _change(data, tenant, lambda adapters, owner: adapters.rollback(owner, name, by=OPERATOR))


def override_adapter(data: Path | None, tenant: str, name: str, version: int, reason: str) -> str:
    return _change(data, tenant, lambda adapters, owner: adapters.override(owner, name, version, reason))


def set_adapter_disabled(data: Path | None, tenant: str, name: str, disabled: bool) -> None:
    from tenants.actors import OPERATOR

    _change(data, tenant, lambda adapters, owner: adapters.set_disabled(owner, name, disabled, by=OPERATOR))


def delete_adapter(data: Path | None, tenant: str, name: str) -> str:
    """Returns the deleted adapter's id."""

    async def work(services: Services) -> str:
        from adapters.deletion import AdapterDeletion
        from tenants.actors import OPERATOR

        owner = await services.accounts.tenants.find_tenant(tenant)
        async with _pinning(services) as pinning:
            deletion = AdapterDeletion(services.database, services.redis, services.bases, pinning)
            return (await deletion.delete(owner.id, name, by=OPERATOR)).id

    return call(data, work)


def _change(
    data: Path | None, tenant: str, change: Callable[[AdapterService, str], Awaitable[AdapterWithVersion]]
) -> str:
    async def work(services: Services) -> str:
        from adapters.service import AdapterService

        owner = await services.accounts.tenants.find_tenant(tenant)
        async with _pinning(services) as pinning:
            adapters = AdapterService(services.database, services.redis, services.bases, pinning)
            shown = await change(adapters, owner.id)
        version = f"@{shown.version.version}" if shown.version is not None else ""
        return f"{shown.adapter.base}:{shown.adapter.name}{version}"

    return call(data, work)


@asynccontextmanager
async def _pinning(services: Services) -> AsyncIterator[Pinning | None]:
    """Yields what makes the engines load adapters early, or None when no engine answers soon: an engine loads
    an adapter at its first request in any case.
    """
    from adapters.pinning import Pinning
    from routing.endpoints import parse_endpoints
    from routing.replica_set import ReplicaSet

    endpoints = {name: parse_endpoints(base.engine_endpoint) for name, base in services.base_models.items()}
    if not all(endpoints.values()):
        yield None
        return
    engines = {name: ReplicaSet(of_base, "operator", base=name) for name, of_base in endpoints.items()}
    for one in engines.values():
        await one.start()
    try:
        try:
            async with asyncio.timeout(_ENGINE_ANSWER_S):
                for one in engines.values():
                    await one.wait_ready()
        except TimeoutError:
            yield None
        else:
            yield Pinning(services.database, engines)
    finally:
        for one in engines.values():
            await one.close()


def _catalogue(services: Services) -> AdapterCatalogue:
    from adapters.catalogue import AdapterCatalogue

    return AdapterCatalogue(services.database, services.bases)
