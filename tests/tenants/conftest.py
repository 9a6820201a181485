from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import redis.asyncio

from db.session import Database
from tenants.errors import AddressNotAllowed, InvalidApiKey
from tenants.models import Tenant
from tenants.resolver import KeyResolver
from tenants.service import AccountServices, account_services
from tests.support import passwords
from tests.support.waiting import eventually

SECRET = "a server's secret of enough length"


@pytest.fixture
def accounts(database: Database, redis_client: redis.asyncio.Redis) -> AccountServices:
    return account_services(database, redis_client, SECRET)


@pytest.fixture
async def tenant(accounts: AccountServices) -> Tenant:
    return await accounts.tenants.create_tenant("acme")


@pytest.fixture
async def other(accounts: AccountServices) -> Tenant:
    return await accounts.tenants.create_tenant("birch")


@pytest.fixture
async def resolver(database: Database, redis_client: redis.asyncio.Redis) -> AsyncIterator[KeyResolver]:
    made = KeyResolver(database, redis_client, SECRET)
    await made.start()
    await eventually(lambda: made.listening)
    yield made
    await made.close()


async def refused(resolver: KeyResolver, plaintext: str, address: str | None = None) -> bool:
    try:
        await resolver.resolve(plaintext, address)
    except (InvalidApiKey, AddressNotAllowed):
        return True
    return False


async def gone(resolver: KeyResolver, *plaintexts: str) -> float:
    """Seconds until every key is refused."""

    async def all_refused() -> bool:
        return all([await refused(resolver, plaintext) for plaintext in plaintexts])

    return await eventually(all_refused)


@pytest.fixture
def cheap_passwords() -> Iterator[None]:
    """Where nothing depends on how slowly they are hashed."""
    with passwords.cheap_passwords():
        yield
