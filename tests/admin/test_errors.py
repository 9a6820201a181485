"""Error pages: within the navigation for signed-in users, and JSON for scripts."""

from __future__ import annotations

import httpx
import pytest

from admin.keys.page import KeysPage
from api.edge import BodyLimit, BodyLimits, Edge
from telemetry.metrics import ServingMetrics
from tests.admin.conftest import Site, sign_in


async def test_an_unexpected_error_keeps_the_navigation(
    site: Site, visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sign_in(visitor)

    async def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr(KeysPage, "index", fail)
    page = await visitor.get("/keys")
    assert page.status_code == 500
    assert page.headers["content-security-policy"]
    for text in (
        "Something went wrong",
        'href="/console/adapters"',
        "Sign out",
        page.headers["x-request-id"],
    ):
        assert text in page.text
    assert "a secret of the inside" not in page.text
    scripted = await visitor.get("/keys", headers={"accept": "application/json"})
    assert (scripted.status_code, scripted.json()["error"]["param"]) == (500, None)
    assert "a secret of the inside" not in scripted.text


async def test_an_unexpected_error_is_counted_once(
    site: Site, visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sign_in(visitor)

    async def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(KeysPage, "index", fail)
    metrics = ServingMetrics()
    edge = Edge(site.app, metrics, BodyLimits(BodyLimit(1 << 26, 30)))
    transport = httpx.ASGITransport(edge, client=("127.0.0.1", 5000))
    async with httpx.AsyncClient(
        transport=transport, base_url=visitor.base_url, cookies=visitor.cookies
    ) as counted:
        assert (await counted.get("/keys")).status_code == 500
        assert (await counted.get("/keys/absent")).status_code == 404
    assert metrics.registry.get_sample_value("rootstock_errors_total", {"code": "internal_error"}) == 1
    assert [
        sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "rootstock_http_requests_total" and sample.labels["status"] == "500"
    ] == [1]


async def test_a_missing_page_keeps_the_navigation(visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    page = await visitor.get("/keys/key_absent")
    assert page.status_code == 404
    assert 'href="/console/adapters"' in page.text
    assert "Request ID" not in page.text
