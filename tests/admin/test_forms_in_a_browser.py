"""Forms and pages between two others, in a real browser: accessible, in light and dark, on any screen."""

from __future__ import annotations

import pytest

from admin.keys.page import KeysPage
from tests.admin.browsing import Visit
from tests.admin.conftest import PASSWORD, Site
from tests.admin.every_page import furnish

NAMES = {"tenant": "Acme", "user": "Ada Lovelace", "project": "Support", "key": "laptop"}


async def test_pages_between_others_are_for_everybody(
    site: Site, seen: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnished = await furnish(site, lambda kind: NAMES.get(kind, kind))
    other = await site.accounts.create(site.tenant_id, "grace@acme.example", PASSWORD)
    page = seen.page
    await seen.go("/limits")
    await page.get_by_role("link", name="Edit").first.click()
    await page.get_by_role("heading", name="Edit limit").wait_for()
    found = await seen.looked_at("limit edit", also_minor=True)
    await seen.go(f"/webhooks/{furnished.things['endpoint']}/change")
    await page.get_by_role("heading", name="Edit endpoint").wait_for()
    found += await seen.looked_at("webhook edit", also_minor=True)
    await seen.go(f"/members/{other.user_id}")
    await page.get_by_role("button", name="Create reset link").click()
    await page.get_by_role("heading", name="Share this link").wait_for()
    found += await seen.looked_at("password reset", also_minor=True)

    async def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(KeysPage, "index", fail)
    await seen.go("/keys")
    await page.get_by_role("heading", name="Something went wrong").wait_for()
    found += await seen.looked_at("an unexpected error", also_minor=True)
    assert [one for one in seen.complaints if "500" not in one] == []
    seen.complaints.clear()
    assert not found
