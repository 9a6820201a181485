"""A console over real services, mounted as the API mounts it, and a tenant with a user who may sign in."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import redis.asyncio
from starlette.applications import Starlette
from starlette.routing import Mount

from adapters.service import AdapterService, ModelResolver
from admin.app import ConsoleServices, create_console
from admin.pages.overview import OverviewPage
from api.console import EXPLANATIONS
from api.organization.scopes import SCOPES
from billing.service import UsageReports
from db.session import Database
from tenants.accounts import UserAccounts
from tenants.key_service import KeyService
from tenants.service import AccountServices, TenantService, account_services
from tests.support.onboarding import BASE_DIGEST, Scene, scene

EMAIL = "ada@acme.example"
PASSWORD = "correct horse battery"
SECRET = "s" * 32


@dataclass
class Site:
    """The console, and what a test needs to look behind it."""

    app: Starlette
    tenants: TenantService
    keys: KeyService
    accounts: UserAccounts
    account: AccountServices
    adapters: AdapterService
    redis: redis.asyncio.Redis
    tenant_id: str
    place: Scene
    """What the console's adapters stand on."""

    def visitor(self, origin: str = "http://127.0.0.1:8000") -> httpx.AsyncClient:
        """A browser without cookies."""
        transport = httpx.ASGITransport(self.app, client=("127.0.0.1", 5000))
        return httpx.AsyncClient(transport=transport, base_url=f"{origin}/console")


def csrf_token(page: httpx.Response) -> str:
    found = re.search(r'name="csrf_token" value="([^"]+)"', page.text)
    assert found is not None
    return found[1]


async def sign_in(visitor: httpx.AsyncClient, email: str = EMAIL, password: str = PASSWORD) -> httpx.Response:
    form = await visitor.get("/sign-in")
    fields = {"csrf_token": csrf_token(form), "email": email, "password": password}
    return await visitor.post("/sign-in", data=fields)


@pytest.fixture
async def site(
    database: Database, redis_client: redis.asyncio.Redis, redis_url: str, tmp_path: Path
) -> AsyncIterator[Site]:
    account = account_services(database, redis_client, SECRET)
    tenants, keys, accounts = account.tenants, account.keys, account.users
    async with scene(database, redis_client, redis_url, tmp_path) as place:
        tenant_id = place.tenants[0]
        await accounts.create(tenant_id, EMAIL, PASSWORD)
        models = ModelResolver(database, redis_client, "sapling")
        console = create_console(
            ConsoleServices(
                redis=redis_client,
                accounts=accounts,
                account=account,
                scopes=SCOPES,
                overview=OverviewPage(keys, models, UsageReports(database)),
                files=place.files,
                uploads=place.uploads,
                adapters=place.onboarding,
                base_digest=lambda: BASE_DIGEST,
                explanations=EXPLANATIONS,
            )
        )
        app = Starlette(routes=[Mount("/console", console)])
        yield Site(
            app, tenants, keys, accounts, account, place.onboarding.adapters, redis_client, tenant_id, place
        )


@pytest.fixture
async def visitor(site: Site) -> AsyncIterator[httpx.AsyncClient]:
    async with site.visitor() as visitor:
        yield visitor
