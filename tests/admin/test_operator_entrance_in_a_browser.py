"""An operator comes in, in a real browser: by a forgotten password, and a second factor that is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import expect

from admin.mail import ConsoleMail
from admin.sign_in.services import SignInServices
from billing.notifications.mailing import Mailer
from tenants.operators.service import OperatorAccounts
from tests.admin.browsing import chromium, visit
from tests.admin.conftest import PASSWORD, Site
from tests.admin.operators import OPERATOR_EMAIL
from tests.admin.test_sign_in_by_mail import OTHER, URL, texts, token_in
from tests.admin.test_sign_in_second_factor import at_step
from tests.billing.notifications.test_mailing import Mailbox, mail_server
from tests.support.serving import served
from tests.support.waiting import eventually


@pytest.fixture
def box() -> Mailbox:
    return Mailbox()


@pytest.fixture
async def sign_in_services(box: Mailbox) -> AsyncIterator[SignInServices]:
    """As a service has it whose settings say nothing of operators."""
    async with mail_server(box) as port:
        mailer = Mailer("127.0.0.1", port, sender="Rootstock <console@rootstock.example>", security="none")
        yield SignInServices(URL, ConsoleMail(mailer, f"{URL}/console"))


async def test_an_operator_comes_in_with_another_password_and_a_second_factor(
    site: Site, box: Mailbox
) -> None:
    await OperatorAccounts(site.place.database, site.redis).add(OPERATOR_EMAIL, PASSWORD)
    async with chromium() as browser, served(site.whole) as origin:
        seen = await visit(await browser.new_context(viewport={"width": 1280, "height": 900}), origin)
        page = seen.page
        await seen.go("/forgot")
        await page.fill("#email", OPERATOR_EMAIL)
        await page.click("text=Send reset link")
        await expect(page.locator("h1")).to_have_text("Check your email")
        await eventually(lambda: bool(box.mail))
        ((to, _, words),) = texts(box)
        assert to == OPERATOR_EMAIL
        await seen.go(f"/reset#{token_in(words, 'reset')}")
        await page.fill("#password", OTHER)
        await page.fill("#again", OTHER)
        await page.click("button[type=submit]")
        await expect(page.locator(".told")).to_contain_text("Password changed")

        await page.fill("#email", OPERATOR_EMAIL)
        await page.fill("#password", OTHER)
        await page.click("button[type=submit]")
        await page.wait_for_url(f"{seen.console}/account/second-factor")
        await expect(page.locator(".heed")).to_contain_text(
            "requires two-factor authentication for all operators"
        )
        found = await seen.looked_at("factor-asked")
        await page.goto(f"{seen.console}/operator/plans")
        assert page.url == f"{seen.console}/account/second-factor", "nothing else is shown before"
        await page.click("text=Set up >> nth=-1")
        secret = await page.inner_text("#secret")
        await page.fill("#code", at_step(secret, 0))
        await page.click("button:has-text('Enable')")
        await expect(page.locator("main li")).to_have_count(10)
        await page.click("nav >> text=Tenants")
        await expect(page.locator("h1")).to_have_text("Tenants")

        await seen.go("/account/second-factor")
        await expect(page.locator("text=rootstock operator reset")).to_be_visible()
        await expect(page.get_by_role("button", name="Disable")).to_have_count(0)
        found += await seen.looked_at("factor-kept")
        assert not found
        assert not seen.complaints
