"""Whatever a person or an upload names is text in a browser: on every page of the console, in Chromium."""

from __future__ import annotations

from playwright.async_api import Browser, Dialog, Error
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tenants.operators.service import OperatorAccounts
from tests.admin.browsing import Visit, visit
from tests.admin.conftest import EMAIL, PASSWORD, Site
from tests.admin.every_page import OPERATORS, SAML_METADATA, furnish, pages
from tests.admin.operators import OPERATOR_EMAIL
from tests.support.serving import served

ATTACK = "<script>alert(7)</script>\"'><img src=x onerror=alert(7)>"
NEVER_SHOWN = {"base in config", "invited", "key of a batch"}
"""What is kept and shown nowhere, or only in part."""
# What a page shows anybody, also in what is folded away, and whether anything of it became markup of its own.
_SHOWN = """() => ({
  text: [
    document.title,
    document.body.textContent,
    ...[...document.querySelectorAll("input, textarea")].map((one) => one.value),
    ...[...document.querySelectorAll("[aria-label]")].map((one) => one.getAttribute("aria-label")),
  ].join("\\n"),
  markup: [...document.querySelectorAll("script:not([src]), img[src='x'], iframe, object, base, style")]
    .map((one) => one.outerHTML)
    .concat(
      [...document.querySelectorAll("*")]
        .filter((one) => one.getAttributeNames().some((name) => name.startsWith("on") || name === "style"))
        .map((one) => one.outerHTML.slice(0, 200)),
      [...document.querySelectorAll("[href], [action], [src]")]
        .filter((one) => /^\\s*(javascript|data|vbscript):/i.test(one.href || one.action || one.src))
        .map((one) => one.outerHTML.slice(0, 200)),
    ),
})"""


class Names:
    """An attack for each field, that says of which."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}

    def __call__(self, field: str) -> str:
        attack = f" javascript:alert(7){ATTACK}"
        if field.startswith(("file", "tax")):  # they have no slash, or little room
            attack = "<img src=x onerror=alert(7)>"
        self.fields[field] = field + attack
        return self.fields[field]


async def no_content(request: Request) -> Response:
    return Response(status_code=204)


async def enter(browser: Browser, origin: str, email: str) -> tuple[Visit, list[str]]:
    """Signed in with a browser that calls itself by an attack, and the dialogs that came up."""
    context = await browser.new_context(
        user_agent=f"browser {ATTACK}", viewport={"width": 1280, "height": 900}
    )
    seen = await visit(context, origin)
    dialogs: list[str] = []

    async def dismiss(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        await dialog.dismiss()

    seen.page.on("dialog", dismiss)
    await seen.go("/sign-in")
    await seen.page.fill("#email", email)
    await seen.page.fill("#password", PASSWORD)
    await seen.page.click("button[type=submit]")
    await seen.page.locator("main#main").wait_for()
    return seen, dialogs


async def is_page(seen: Visit, path: str) -> bool:
    """Whether it is shown there now: documents are handed out, and taken for no page (nosniff)."""
    try:
        answer = await seen.page.goto(seen.console + path)
    except Error as error:
        if "Download is starting" not in error.message and "ERR_ABORTED" not in error.message:
            raise
        return False
    assert answer is not None
    return answer.headers["content-type"].startswith("text/html")


async def test_names_are_shown_as_they_are_on_every_page(site: Site, browser: Browser) -> None:
    names = Names()
    furnished = await furnish(site, names)
    await OperatorAccounts(site.place.database, site.redis).add(OPERATOR_EMAIL, PASSWORD)
    left_out = furnished.leading_elsewhere | {furnished.path(SAML_METADATA)}  # which is a file
    paths = [path for path in pages(site, furnished) if path not in left_out]
    # Browsers ask for it on parts of pages. To answer it in the browser would disable its cache.
    site.app.routes.append(Route("/favicon.ico", no_content))
    shown, became_markup = [], []
    async with served(site.whole) as origin:
        for email, is_operator in ((EMAIL, False), (OPERATOR_EMAIL, True)):
            seen, dialogs = await enter(browser, origin, email)
            for path in [one for one in paths if one.startswith(OPERATORS) == is_operator]:
                if not await is_page(seen, path):
                    continue
                found = await seen.page.evaluate(_SHOWN)
                shown.append(found["text"])
                became_markup += [f"{path}: {one}" for one in found["markup"]]
                assert not dialogs, path
                assert not seen.complaints, path
            await seen.page.context.close()
    assert not became_markup
    everything = "\n".join(shown)
    assert {field for field, name in names.fields.items() if name not in everything} <= NEVER_SHOWN
