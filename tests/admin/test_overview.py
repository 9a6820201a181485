"""What the first page shows, and to whom."""

from __future__ import annotations

import re

import httpx

from admin.bar_list import LABEL_PX, PLOT_PX, bar_chart
from admin.pages.overview import MAX_BARS, _bars
from engine.protocol import AdapterRef
from tenants.actors import OPERATOR
from tests.admin.conftest import Site, sign_in


async def test_models_and_keys_of_the_tenant_and_nobody_else(site: Site, visitor: httpx.AsyncClient) -> None:
    other = await site.tenants.create_tenant("birch")
    for tenant_id, name, digit in ((site.tenant_id, "pirate", "a"), (other.id, "secret", "b")):
        ref = AdapterRef(digit * 64, 8)
        await site.adapters.register_version(tenant_id, name, ref, base_digest="c" * 64)
    mine = await site.keys.create(site.tenant_id, "laptop", OPERATOR)
    gone = await site.keys.create(site.tenant_id, "old robot", OPERATOR)
    await site.keys.revoke(site.tenant_id, gone.id, OPERATOR)
    await site.keys.create(other.id, "theirs", OPERATOR)
    await sign_in(visitor)
    page = (await visitor.get("/")).text
    assert "sapling:pirate" in page
    assert "laptop" in page
    assert mine.prefix in page
    assert mine.plaintext not in page
    assert re.search(r'class="revoked">\s*<th scope="row">old robot', page)
    assert "sapling:secret" not in page
    assert "theirs" not in page


async def test_names_are_shown_as_text(site: Site, visitor: httpx.AsyncClient) -> None:
    await site.keys.create(site.tenant_id, "<script>alert(1)</script>\"'", OPERATOR)
    await sign_in(visitor)
    page = (await visitor.get("/")).text
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


async def test_pages_carry_no_inline_style_or_script(visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    for path in ("/", "/sign-in", "/absent"):
        page = (await visitor.get(path)).text
        assert not re.search(r"<script|<style|\sstyle=|\son\w+=|javascript:", page)


async def test_without_usage_the_page_says_so(visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    assert "No requests yet today" in (await visitor.get("/")).text


async def test_the_style_sheet_is_there_and_cacheable(visitor: httpx.AsyncClient) -> None:
    page = await visitor.get("/sign-in")
    found = re.search(r'href="([^"]+console\.css\?v=[0-9a-f]+)"', page.text)
    assert found is not None
    sheet = await visitor.get(f"http://127.0.0.1:8000{found[1]}")
    assert sheet.status_code == 200
    assert sheet.headers["content-type"].startswith("text/css")
    assert sheet.headers["cache-control"] == "public, max-age=86400"
    assert "prefers-color-scheme: dark" in sheet.text


def test_bars_are_to_scale() -> None:
    chart = bar_chart([("a", 300, 100), ("b", 100, 0), ("c", 0, 1), ("long " * 10, 0, 0)])
    a, b, c, empty = chart.bars
    assert a.first_width + a.second_width == PLOT_PX
    assert b.first_width == PLOT_PX / 4
    assert a.second_x == LABEL_PX + a.first_width
    assert c.second_width == 1.0
    assert (empty.first_width, empty.second_width) == (0, 0)
    assert empty.label.endswith("…")
    assert a.value == "400"
    assert bar_chart([]).bars == ()
    assert bar_chart([("a", 0, 0)]).bars[0].end_x == LABEL_PX


def test_many_models_become_few_bars_with_the_same_sum() -> None:
    results = [{"model": f"m{i}", "input_tokens": i, "output_tokens": 1} for i in range(20)]
    rows = _bars(results)
    assert len(rows) == MAX_BARS + 1
    assert rows[0] == ("m19", 19, 1)
    assert rows[-1][0] == "8 others"
    assert sum(row[1] for row in rows) == sum(range(20))
