"""What lets somebody in, in a real browser: a second factor, another password, a provider; and what they keep
apart: projects, and keys whose terms change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from admin.settings import ProviderSettings
from admin.sign_in.oidc.provider import Provider
from admin.sign_in.services import SignInServices
from tenants.actors import OPERATOR
from tests.admin.browsing import visit
from tests.admin.conftest import EMAIL, PASSWORD, Site
from tests.admin.test_sign_in_second_factor import at_step
from tests.support.openid_provider import CLIENT_ID, CLIENT_SECRET, OpenIdProvider
from tests.support.serving import served

OTHER = "another horse, another battery"


@pytest.fixture
async def sign_in_services() -> AsyncIterator[SignInServices]:
    double = OpenIdProvider()
    async with served(double.app) as origin:
        double.issuer = origin
        settings = ProviderSettings(
            name="acme", title="Acme", issuer=origin, client_id=CLIENT_ID, client_secret=CLIENT_SECRET
        )
        provider = Provider(settings)
        yield SignInServices(providers=(provider,))
        await provider.close()


async def test_a_second_factor_another_password_a_project_and_a_key(site: Site, browser: Browser) -> None:
    key = await site.keys.create(site.tenant_id, "support bot", OPERATOR)
    async with served(site.whole) as origin:
        # What fades in has no contrast yet.
        context = await browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
        seen = await visit(context, origin)
        page = seen.page
        await seen.go("/sign-in")
        found = await seen.looked_at("sign-in")
        await seen.sign_in(EMAIL, PASSWORD)

        await page.get_by_role("link", name=EMAIL).click()
        await page.get_by_role("link", name="Set up").click()
        await page.get_by_role("button", name="Set up").click()
        secret = await page.locator("#secret").inner_text()
        found += await seen.looked_at("second-factor-new")
        await page.fill("#code", at_step(secret, 0))
        await page.get_by_role("button", name="Enable").click()
        await page.get_by_role("heading", name="Two-factor authentication is on").wait_for()
        assert await page.locator(".codes li").count() == 10
        found += await seen.looked_at("second-factor-codes")
        await page.reload()  # shown once
        await page.get_by_role("heading", name="Enabled", exact=False).first.wait_for()
        assert await page.locator(".codes li").count() == 0
        found += await seen.looked_at("second-factor")

        await page.get_by_role("button", name="Sign out").click()
        await page.fill("#email", EMAIL)
        await page.fill("#password", PASSWORD)
        await page.get_by_role("button", name="Sign in", exact=True).click()
        await page.get_by_role("heading", name="Two-factor authentication").wait_for()
        found += await seen.looked_at("code")
        await page.fill("#code", at_step(secret))
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"{seen.console}/")

        await seen.go("/account")
        await page.fill("#old", PASSWORD)
        await page.fill("#password", OTHER)
        await page.fill("#again", OTHER)
        await page.get_by_role("button", name="Change password").click()
        await page.get_by_text("You've been signed out on all other devices.").wait_for()

        # On to the provider and back, which the content security policy must let pass.
        await page.fill("#confirm", OTHER)
        await page.get_by_role("button", name="Connect Acme").click()
        await page.get_by_text("Acme connected.").wait_for()
        found += await seen.looked_at("account")

        await page.get_by_role("link", name="Projects").click()
        await page.get_by_role("link", name="Create project").click()
        await page.fill("#name", "Helpers")
        await page.get_by_role("button", name="Create project").click()
        await page.get_by_text("Helpers was created.").wait_for()
        await page.get_by_label("Member", exact=True).select_option(label=EMAIL)
        await page.get_by_role("button", name="Add to project").click()
        await page.get_by_text("was added to the project.").wait_for()
        found += await seen.looked_at("project")
        await seen.go("/projects")
        found += await seen.looked_at("projects")

        await seen.go(f"/keys/{key.id}")
        await page.get_by_role("link", name="Edit", exact=True).click()
        await page.fill("#name", "support bot, production")
        await page.get_by_label("Restricted").check()
        await page.get_by_label("Send requests to models").check()
        await page.fill("#networks", "203.0.113.0/24")
        found += await seen.looked_at("key-edit")
        await page.get_by_role("button", name="Save changes").click()
        await page.get_by_role("heading", name="support bot, production").wait_for()
        for path in ("/forgot", "/reset"):
            await seen.go(path)
            found += await seen.looked_at(path.strip("/"))
        assert not found
        assert not seen.complaints
        row = (await site.keys.get(site.tenant_id, key.id))[0]
        assert (row.scopes, [str(one) for one in row.networks]) == (["model.request"], ["203.0.113.0/24"])
        await context.close()
