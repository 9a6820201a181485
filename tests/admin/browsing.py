"""Chromium on the console's pages, over a real server on the loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright

from tests.support.chromium import MISSING, find, is_required

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
AXE = Path(__file__).parent / "vendor" / "axe.min.js"


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    program = find()
    if program is None and is_required():
        pytest.fail(MISSING)
    if program is None:
        pytest.skip(MISSING)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=[*_FLAGS])
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Visit:
    """A window, and what its pages complained of."""

    page: Page
    console: str
    complaints: list[str] = field(default_factory=list)

    async def go(self, path: str) -> None:
        await self.page.goto(self.console + path)

    async def sign_in(self, email: str, password: str, lands: str = "/") -> None:
        await self.go("/sign-in")
        await self.page.fill("#email", email)
        await self.page.fill("#password", password)
        await self.page.click("button[type=submit]")
        await self.page.wait_for_url(self.console + lands)

    async def serious(self, *rules: str) -> list[str]:
        """What axe finds serious or worse on the page as it is, by these rules or all."""
        return [told for impact, told in await self._violations(rules) if impact in ("serious", "critical")]

    async def findings(self) -> list[str]:
        """All that axe finds on the page as it is."""
        return [f"{impact} {told}" for impact, told in await self._violations(())]

    async def _violations(self, rules: tuple[str, ...]) -> list[tuple[str, str]]:
        if not await self.page.evaluate("'axe' in window"):
            await self.page.evaluate(AXE.read_text())
        options: dict[str, Any] = {"resultTypes": ["violations"]}
        if rules:
            options["runOnly"] = {"type": "rule", "values": [*rules]}
        found: dict[str, Any] = await self.page.evaluate("(options) => axe.run(document, options)", options)
        return [
            (one["impact"], f"{one['id']}: {node['target']} {node['failureSummary']}")
            for one in found["violations"]
            for node in one["nodes"]
        ]


async def visit(context: BrowserContext, origin: str) -> Visit:
    """A new window. Scripts' errors and refusals of the content security policy are complaints."""
    page = await context.new_page()
    opened = Visit(page, f"{origin}/console")

    def heard(message: ConsoleMessage) -> None:
        if message.type == "error":
            opened.complaints.append(message.text)

    page.on("console", heard)
    page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    return opened
