"""Chromium on the console's pages, over a real server on the loopback."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright

from cli.local import child
from tests.support.chromium import MISSING, find, is_required
from tests.support.waiting import until

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # As playwright starts it, and for a mouse: without one, frames that scroll are given no focus.
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
    "--hide-scrollbars",
    "--mute-audio",
    "--force-color-profile=srgb",
    "--disable-dev-shm-usage",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    # No page lives long enough for optimized code to save what compiling it costs.
    "--js-flags=--no-maglev,--no-turbofan",
)
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
WIDE, NARROW = 1280, 390
"""Screens, in px."""
# Colours and what has to be scrolled to differ; the rest of a page is the same in either.
_LOOKS = (
    ("light", WIDE, ()),
    ("dark", NARROW, ("color-contrast", "link-in-text-block", "scrollable-region-focusable")),
)
# Without the hundreds of rules that found nothing, which take longer to come through than what was found.
_VIOLATIONS = """async (options) => {
  if (!window.axe && !window.loadAxe) return null;
  if (!window.axe) loadAxe();
  return (await axe.run(document, options)).violations;
}"""
_COMPILED_DRIVER = Path(__file__).resolve().parents[2] / "var" / "browser-driver"
"""Where Node.js keeps what it has compiled of playwright's driver: each test starts one."""
PICTURES = os.environ.get("ROOTSTOCK_TEST_SCREENSHOTS")
"""The folder that pictures of the pages are written to; unset: none are taken."""


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    program = find()
    if program is None and is_required():
        pytest.fail(MISSING)
    if program is None:
        pytest.skip(MISSING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NODE_COMPILE_CACHE", str(_COMPILED_DRIVER))
        playwright = await async_playwright().start()
    try:
        browser = await playwright.chromium.connect_over_cdp(_started(program))
        try:
            yield browser
        finally:
            await browser.close()  # the contexts that were made here, and the connection
    finally:
        await playwright.stop()


@cache
def _started(program: str) -> str:
    """Starts Chromium for all tests of this process, with which it ends. Returns where it is driven."""
    # Debian's is a child of a script, which would end alone.
    beside_script = Path("/usr/lib/chromium") / Path(program).name
    program = str(beside_script) if beside_script.exists() else program
    folder = Path(tempfile.mkdtemp(prefix="rs-chromium-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    dies_with_us = ["-I", child.__file__, "--parent", str(os.getpid()), "--signal", str(signal.SIGKILL), "--"]
    options = [*_FLAGS, "--headless", f"--user-data-dir={folder}", "--remote-debugging-port=0", "about:blank"]
    process = subprocess.Popen(
        [sys.executable, *dies_with_us, program, *options],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    atexit.register(process.wait)
    atexit.register(process.kill)
    ports = folder / "DevToolsActivePort"  # the port, and a line of its path
    until(lambda: ports.exists() and ports.read_text().count("\n") > 0, 30, "Chromium")
    return f"http://127.0.0.1:{ports.read_text().split()[0]}"


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

    async def looked_at(self, name: str, *, also_minor: bool = False) -> list[str]:
        """What is wrong with the page as it is: in light on a wide screen, in dark on a narrow one. Serious
        findings; or also minor ones, for pages whose narrow form has parts of its own, by all rules on both.
        """
        found = []
        for scheme, width, rules in _LOOKS:
            # What fades into another colour has no contrast yet.
            await self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
            await self.page.set_viewport_size({"width": width, "height": 844})
            seen = await self.findings() if also_minor else await self.serious(*rules)
            found += [f"{name} {scheme}: {one}" for one in seen]
            found += await self.too_wide(name)
            await self.picture(f"{name}-{scheme}")
        await self.page.emulate_media(color_scheme="light", reduced_motion="null")
        await self.page.set_viewport_size({"width": WIDE, "height": 844})
        return found

    async def too_wide(self, name: str) -> list[str]:
        """Whether the page has to be scrolled sideways."""
        needed, width = await self.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        beyond = needed - width
        return [f"{name} is {beyond} px wider than a screen of {width}"] if beyond > 0 else []

    async def look_at(self, *paths: str) -> list[str]:
        """What is wrong with these pages, one after the other."""
        found = []
        for path in paths:
            await self.go(path)
            found += await self.looked_at(path)
        return found

    async def picture(self, name: str) -> None:
        """Keeps one, where pictures are wanted."""
        if PICTURES:
            file = re.sub(r"\W+", "-", name).strip("-") or "start"
            await self.page.screenshot(path=Path(PICTURES) / f"{file}.png", full_page=True)

    async def serious(self, *rules: str) -> list[str]:
        """What axe finds serious or worse on the page as it is, by these rules or all."""
        return [told for impact, told in await self._violations(rules) if impact in ("serious", "critical")]

    async def findings(self) -> list[str]:
        """All that axe finds on the page as it is."""
        return [f"{impact} {told}" for impact, told in await self._violations(())]

    async def _violations(self, rules: tuple[str, ...]) -> list[tuple[str, str]]:
        options: dict[str, Any] = {"resultTypes": ["violations"]}
        if rules:
            options["runOnly"] = {"type": "rule", "values": [*rules]}
        violations: list[dict[str, Any]] | None = await self.page.evaluate(_VIOLATIONS, options)
        if violations is None:
            # Sent once for all pages to come: it takes longer to come through than to run.
            source = AXE.read_text()
            await self.page.add_init_script(f"window.loadAxe = () => {{ {source} }}")
            await self.page.evaluate(source)
            violations = await self.page.evaluate(_VIOLATIONS, options)
            assert violations is not None
        return [
            (one["impact"], f"{one['id']}: {node['target']} {node['failureSummary']}")
            for one in violations
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
