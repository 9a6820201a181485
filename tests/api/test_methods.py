"""Which methods paths take: `Allow` of a 405, HEAD, and the health check that benchmarks ask for."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.api.conftest import World

HEALTH = ("/livez", "/readyz", "/health", "/metrics")


async def test_allow_names_exactly_the_methods_of_a_path(client: httpx.AsyncClient) -> None:
    """Also where a path with a parameter, which other methods take, would match it."""
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert sum(len(operations) > 1 for operations in paths.values()) > 5
    shadowed = 0
    for path, operations in paths.items():
        url = re.sub(r"\{.*?\}", "x", path)
        shadowed += (
            sum(re.fullmatch(re.sub(r"\{.*?\}", "[^/]+", other), path) is not None for other in paths) > 1
        )
        allowed = (await client.request("TRACE", url)).headers["allow"].split(", ")
        assert set(allowed) - {"HEAD"} == {method.upper() for method in operations}, path
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
            status = (await client.request(method, url, headers={"authorization": ""})).status_code
            assert (status == 405) is (method not in allowed), f"{method} {url}"
    assert shadowed >= 3


@pytest.mark.parametrize("path", [*HEALTH, "/v1/models", "/v1/models/sapling"])
async def test_head_is_get_without_the_body(client: httpx.AsyncClient, path: str) -> None:
    got, headed = await client.get(path), await client.head(path)
    assert headed.status_code == got.status_code == 200
    assert headed.headers["content-type"] == got.headers["content-type"]
    allowed = (await client.put(path)).headers["allow"]
    assert allowed.split(", ")[:2] == ["GET", "HEAD"]


async def test_head_of_models_needs_a_key(client: httpx.AsyncClient) -> None:
    for path in ("/v1/models", "/v1/models/sapling"):
        assert (await client.head(path, headers={"authorization": ""})).status_code == 401


async def test_health_says_whether_requests_are_served(client: httpx.AsyncClient, world: World) -> None:
    assert (await client.get("/health", headers={"authorization": ""})).status_code == 200
    world.engine.ready = False
    assert (await client.get("/health")).status_code == (await client.head("/health")).status_code == 503
