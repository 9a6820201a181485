from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from cli.local.postgres import serving_url
from cli.local.server import LocalServer
from tests.api.organization.site import Party, Site, serving_accounts, stock_client
from tests.support.clusters import TEMPLATE
from tests.support.databases import SharedDatabase
from tokenization.codec import TextCodec

_serial = itertools.count()


@pytest.fixture(scope="module")
def site(
    codec: TextCodec,
    postgres_server: LocalServer,
    postgres_admin: psycopg.Connection,
    redis_server: LocalServer,
) -> Iterator[Site]:
    """One for a module: its tests have tenants of their own."""
    database = SharedDatabase(postgres_admin, postgres_server.url, TEMPLATE)
    with serving_accounts(codec, serving_url(database.url), redis_server.url) as running:
        yield running
    database.close()


@pytest.fixture
def ours(site: Site) -> Party:
    return site.party(f"ours-{next(_serial)}")


@pytest.fixture(params=["blocking", "asynchronous"])
def sdk(request: pytest.FixtureRequest, site: Site, ours: Party) -> Iterator[Any]:
    """The stock client with an admin key of ours."""
    with stock_client(site, ours.admin_key, blocking=request.param == "blocking") as client:
        yield client


@pytest.fixture
def organization(sdk: Any) -> Any:
    return sdk.admin.organization
