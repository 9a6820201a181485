"""Signing in by SAML in Chromium: the provider's page is of another site, so its form brings no cookie."""

from __future__ import annotations

import base64
import html
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from lxml import etree
from playwright.async_api import Browser
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from tenants.actors import OPERATOR
from tests.admin.browsing import visit
from tests.admin.conftest import EMAIL, Site
from tests.support.saml_provider import SamlProvider, Statement, certificate, metadata
from tests.support.serving import served


@dataclass
class ProviderPage:
    """The provider's sign-in page: its button posts the response back."""

    provider: SamlProvider = field(default_factory=SamlProvider)
    email: str = EMAIL
    origins: list[str | None] = field(default_factory=list)

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/sso", self.show, methods=["GET"])])

    async def show(self, request: Request) -> Response:
        asked: Any = etree.fromstring(
            zlib.decompress(base64.b64decode(request.query_params["SAMLRequest"]), -15)
        )
        acs_url = asked.get("AssertionConsumerServiceURL")
        document = self.provider.respond(
            Statement(acs_url, asked[0].text, asked.get("ID"), attributes={"email": [self.email]})
        )
        value = html.escape(base64.b64encode(document).decode())
        return HTMLResponse(
            f"<!doctype html><title>Acme</title><form method=post action='{html.escape(acs_url)}'>"
            f"<input type=hidden name=SAMLResponse value='{value}'><button>Sign in at Acme</button></form>"
        )


@pytest.fixture
async def acme(site: Site) -> AsyncIterator[ProviderPage]:
    page = ProviderPage()
    async with served(page.app) as origin:
        document = metadata(certificate("idp"), sso_url=f"{origin}/sso")
        await site.account.saml_connections.set(site.tenant_id, {"metadata": document}, OPERATOR)
        yield page


async def test_a_member_signs_in_over_another_site(site: Site, browser: Browser, acme: ProviderPage) -> None:
    async with served(site.whole) as origin:
        context = await browser.new_context()
        # The provider is on 127.0.0.1: for a browser, localhost is another site.
        opened = await visit(context, origin.replace("127.0.0.1", "localhost"))
        await opened.go("/usage")
        await opened.page.click("text=single sign-on")
        assert await opened.serious() == []
        await opened.page.fill("#email", EMAIL)
        await opened.page.click("button[type=submit]")
        await opened.page.click("text=Sign in at Acme")
        await opened.page.wait_for_url(f"{opened.console}/usage")
        assert await opened.page.locator("h1").inner_text() == "Usage"
        await opened.go("/settings/single-sign-on")
        assert await opened.serious() == []
        assert not opened.complaints
        await context.close()
