"""Two versions of an adapter beside each other: their scores, and their answers."""

from __future__ import annotations

import html
import json
import re

import httpx
from sqlalchemy import text

from db.session import EVERY_TENANT
from tests.admin.browsing import Visit
from tests.admin.conftest import Site, sign_in
from tests.admin.test_adapters import act, two_ready_versions

OLD = {"gain": 0.5, "nll": 1.2, "nll_rise": 0.01, "top1": 0.98, "perplexity": 3.3, "ready": True}
NEW = {"gain": 0.38, "nll": 1.32, "nll_rise": 0.01, "top1": 0.99, "perplexity": None, "ready": True}


async def measured(site: Site, adapter: str, version: int, found: dict[str, object]) -> None:
    """As calibration leaves it."""
    async with site.place.database.write(EVERY_TENANT) as session:
        await session.execute(
            text(
                "UPDATE adapter_versions SET calibration = CAST(:found AS jsonb)"
                " WHERE adapter_id = :adapter AND version = :version"
            ),
            {"found": json.dumps(found), "adapter": adapter, "version": version},
        )


def rows(page: httpx.Response) -> dict[str, list[str]]:
    """Texts of the cells, by the head of the row."""
    found = {}
    for row in re.findall(r"<tr.*?</tr>", page.text, re.S):
        cells = re.findall(r"<t[hd].*?</t[hd]>", row, re.S)
        told = [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", cell)).split()) for cell in cells]
        found[told[0]] = told[1:]
    return found


async def test_scores_stand_side_by_side_and_what_is_worse_is_marked(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    adapter = await two_ready_versions(site.place)
    here = f"/adapters/{adapter}"
    await act(visitor, here, f"{here}/versions/1/activate")
    samples = {"samples": "tenant", "num_samples": 20}
    await measured(site, adapter, 1, OLD | samples)
    await measured(site, adapter, 2, NEW | samples)
    assert f'href="/console{here}/compare"' in (await visitor.get(here)).text
    page = await visitor.get(f"{here}/compare?left=1&right=2")
    shown = rows(page)
    gain = next(cells for head, cells in shown.items() if head.startswith("Gain over base"))
    assert gain == ["0.5000", "0.3800", "−0.1200", "Worse"]
    loss = next(cells for head, cells in shown.items() if head.startswith("Loss Nats"))
    assert loss == ["1.2000", "1.3200", "+0.1200", "Worse"], "less is better"
    agreement = next(cells for head, cells in shown.items() if head.startswith("Top-1"))
    assert agreement == ["98.00 %", "99.00 %", "+1.00 %", "Better"]
    same = next(cells for head, cells in shown.items() if head.startswith("Loss from"))
    assert same == ["0.0100", "0.0100", "–", ""]
    unknown = next(cells for head, cells in shown.items() if head.startswith("Perplexity"))
    assert unknown == ["3.3000", "–", "–", ""]
    assert page.text.count('<tr class="worse">') == 2
    assert "Worse than the active version" in page.text
    assert "Activate version 2 although it measured worse?" in page.text
    assert "different samples" not in page.text
    default = await visitor.get(f"{here}/compare")
    assert rows(default) == shown, "the newest beside the active one"
    back = await visitor.get(f"{here}/compare?left=2&right=1")
    assert "Worse than the active version" not in back.text
    await measured(site, adapter, 2, NEW | samples | {"num_samples": 3})
    assert "different samples" in (await visitor.get(f"{here}/compare")).text


async def test_what_cannot_be_compared_is_refused(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    adapter = await two_ready_versions(site.place)
    here = f"/adapters/{adapter}/compare"
    for query in ("left=x", "left=0", "left=1&right=9"):
        assert (await visitor.get(f"{here}?{query}")).status_code == 404, query
    shown = rows(await visitor.get(here))
    assert not [head for head in shown if head.startswith("Gain")], "neither was measured"
    assert shown["Checks"][:2] == ["Not measured", "Not measured"]
    alone = await site.place.make_ready(made := await site.place.create("corsair"), "7")
    assert alone
    page = await visitor.get(f"/adapters/{made.adapter.id}/compare")
    assert "only one version" in page.text
    theirs = await site.place.create("theirs", tenant=1)
    assert (await visitor.get(f"/adapters/{theirs.adapter.id}/compare")).status_code == 404


async def test_both_versions_answer_in_the_playground(site: Site, seen: Visit) -> None:
    adapter = await two_ready_versions(site.place)
    site.engine.script = lambda submit: site.engine.says(submit, "Ahoy")
    page = seen.page
    await seen.go(f"/adapters/{adapter}/compare?left=1&right=2")
    await page.get_by_role("link", name="Chat with both").click()
    models = page.locator(".speaker h2")
    await models.nth(1).wait_for()
    assert await models.all_text_contents() == ["sapling:pirate@1", "sapling:pirate@2"]
    await page.fill("#message", "Hello")
    await page.keyboard.press("Enter")
    await page.locator("[data-measured]:not(:empty)").nth(1).wait_for()
    asked = {submit.labels["model"] for submit in site.engine.submitted}
    assert asked == {"sapling:pirate@1", "sapling:pirate@2"}
    # A model isn't compared with itself.
    await page.get_by_label("Model", exact=True).select_option("sapling:pirate@2")
    assert await models.all_text_contents() == ["sapling:pirate@2"]
    assert await page.get_by_label("Compare with").input_value() == ""
    assert not await seen.serious()


async def test_the_playground_takes_only_versions_that_can_be_asked(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    await two_ready_versions(site.place)
    page = (await visitor.get("/playground?model=sapling:pirate@1&versus=sapling:pirate@9")).text
    assert '<option value="sapling:pirate@1" selected>' in page
    assert "@9" not in page
    assert '<option value="" selected>None' in page
    for name in ("sapling:absent@1", "a@b:c@d", "@"):
        page = (await visitor.get("/playground", params={"model": name, "versus": name})).text
        assert '<option value="sapling:pirate" selected>' in page
