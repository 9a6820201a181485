"""The API behind a real server, with real accounts, and the stock client of it, blocking and not.

The server's event loop runs in a thread of its own; `Site.do` has it run what a test needs done there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import httpx
import openai
import redis.asyncio
from openai._base_client import AsyncPaginator
from openai.pagination import AsyncPage

from api.services import Services
from billing.invoices.credits import CreditService
from billing.invoices.service import InvoiceService
from billing.invoices.settings import InvoiceSettings
from billing.notifications.sending import WebhookSender
from billing.notifications.service import WebhookService
from billing.payments.service import PaymentService
from billing.service import UsageReports
from billing.spend.alerts import SpendAlertService
from db.session import Database
from tenants.actors import OPERATOR
from tenants.models import Tenant
from tenants.quotas import Quotas
from tenants.resolver import KeyResolver
from tenants.service import AccountServices, account_services
from tests.api.conftest import build, serving
from tests.support.waiting import until
from tokenization.codec import TextCodec

SECRET = "a server's secret of enough length"
T = TypeVar("T")


@dataclass
class Party:
    """A tenant, and what its people know."""

    tenant_id: str
    name: str
    admin_key: str = field(repr=False)
    key: str = field(repr=False)
    owner_id: str
    project_id: str
    """Its default one."""

    def mail(self, name: str) -> str:
        """An address that no other tenant's people have."""
        return f"{name}@{self.name}.example"


@dataclass
class Site:
    url: str
    accounts: AccountServices
    database: Database
    loop: asyncio.AbstractEventLoop
    http: httpx.Client

    def do(self, work: Awaitable[T]) -> T:
        async def whole() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(whole(), self.loop).result(30)

    def party(self, name: str) -> Party:
        return self.do(_party(self.accounts, name))

    def ask(
        self, method: str, path: str, key: str | None, body: Any = None, **options: Any
    ) -> httpx.Response:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return self.http.request(method, path, json=body, headers=headers, **options)

    def refused(self, key: str) -> bool:
        """Whatever kind of key it is."""
        return self.ask("GET", "/v1/models", key).status_code == 401

    def soon(self, holds: Callable[[], object]) -> None:
        """Within a second."""
        until(holds, 1)

    def soon_refused(self, *keys: str) -> None:
        self.soon(lambda: all(self.refused(key) for key in keys))


async def _party(accounts: AccountServices, name: str) -> Party:
    tenant: Tenant = await accounts.tenants.create_tenant(name)
    owner = await accounts.users.create(tenant.id, f"owner@{name}.example", "a long password")
    admin = await accounts.keys.create(tenant.id, "first", OPERATOR, kind="admin")
    key = await accounts.keys.create(tenant.id, "main", OPERATOR)
    project = await accounts.projects.default(tenant.id)
    return Party(tenant.id, name, admin.plaintext, key.plaintext, owner.user_id, project.id)


@contextmanager
def serving_accounts(codec: TextCodec, database_url: str, redis_url: str) -> Iterator[Site]:
    database = Database(database_url)
    cache = redis.asyncio.Redis.from_url(redis_url)
    keys = KeyResolver(database, cache, SECRET)
    accounts = account_services(database, cache, SECRET)
    world = build(codec)
    quotas = Quotas(redis_url, "organization-test")
    usage = UsageReports(database)
    services: Services = replace(
        world.services,
        keys=keys,
        accounts=accounts,
        quotas=quotas,
        usage=usage,
        webhooks=WebhookService(database, WebhookSender(http_allowed=True, private_allowed=True)),
        spend_alerts=SpendAlertService(database),
        invoices=InvoiceService(database, cache, InvoiceSettings()),
        credits=CreditService(database, cache),
        payments=PaymentService(database, None, return_url="https://us.example/"),
    )
    loops: list[asyncio.AbstractEventLoop] = []

    async def start() -> None:
        loops.append(asyncio.get_running_loop())
        await keys.start()
        await quotas.start()

    async def close() -> None:
        await keys.close()
        await quotas.close()
        await cache.aclose()
        await database.close()

    with serving(replace(world, services=services), close, start) as served:
        until(lambda: keys.listening and not quotas.away)
        with httpx.Client(base_url=served.url, timeout=30) as http:
            yield Site(served.url, accounts, database, loops[0], http)


class Blocking:
    """The asynchronous client on the server's loop, used as the blocking one is."""

    def __init__(self, target: Any, site: Site) -> None:
        self._target = target
        self._site = site

    def __getattr__(self, name: str) -> Blocking:
        return Blocking(getattr(self._target, name), self._site)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        made = self._target(*arguments, **options)
        if isinstance(made, AsyncPaginator):
            return BlockingPages(self._site.do(made), self._site)
        return self._site.do(made)


class BlockingPages:
    """A page; iterated, it and all beyond it."""

    def __init__(self, page: AsyncPage[Any], site: Site) -> None:
        self._page = page
        self._site = site

    def __getattr__(self, name: str) -> Any:
        return getattr(self._page, name)

    def __iter__(self) -> Iterator[Any]:
        async def drained() -> list[Any]:
            return [item async for item in self._page]

        return iter(self._site.do(drained()))


@contextmanager
def stock_client(site: Site, key: str, *, blocking: bool = True) -> Iterator[Any]:
    """`client.admin.organization...` of either client, as a blocking one."""
    options: dict[str, Any] = {
        "base_url": f"{site.url}/v1",
        "api_key": key,
        "admin_api_key": key,
        "max_retries": 0,
        "timeout": 30,
    }
    if blocking:
        with openai.OpenAI(**options) as client:
            yield client
    else:
        opened = openai.AsyncOpenAI(**options)
        try:
            yield Blocking(opened, site)
        finally:
            site.do(opened.close())
