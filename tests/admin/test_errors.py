"""Error pages: within the navigation for signed-in users, and JSON for scripts."""

from __future__ import annotations

import httpx
import pytest

from admin.keys.page import KeysPage
from tests.admin.conftest import Site, sign_in


async def test_an_unexpected_error_keeps_the_navigation(
    site: Site, visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sign_in(visitor)

    async def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr(KeysPage, "shown", fail)
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


async def test_a_missing_page_keeps_the_navigation(visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    page = await visitor.get("/keys/key_absent")
    assert page.status_code == 404
    assert 'href="/console/adapters"' in page.text
    assert "Request ID" not in page.text
