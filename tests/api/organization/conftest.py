from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.organization.site import Party, Site, serving_accounts, stock_client
from tokenization.codec import TextCodec


@pytest.fixture
def site(codec: TextCodec, database_url: str, redis_url: str) -> Iterator[Site]:
    with serving_accounts(codec, database_url, redis_url) as running:
        yield running


@pytest.fixture
def ours(site: Site) -> Party:
    return site.party("ours")


@pytest.fixture
def theirs(site: Site) -> Party:
    return site.party("theirs")


@pytest.fixture(params=["blocking", "asynchronous"])
def sdk(request: pytest.FixtureRequest, site: Site, ours: Party) -> Iterator[Any]:
    """The stock client with an admin key of ours."""
    with stock_client(site, ours.admin_key, blocking=request.param == "blocking") as client:
        yield client


@pytest.fixture
def organization(sdk: Any) -> Any:
    return sdk.admin.organization
