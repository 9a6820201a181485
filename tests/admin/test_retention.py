"""The pages of retention: a period is previewed before it deletes, holds, certificates, and who may change
what.
"""

from __future__ import annotations

import json
from datetime import timedelta

import httpx
from sqlalchemy import text

from retention.certificates import verify
from retention.service import RetentionService
from tests.admin.conftest import Site, csrf_token, sign_in
from tests.admin.every_page import certified_file
from tests.admin.test_keys import as_role

PATH = "/settings/retention"


async def submit(visitor: httpx.AsyncClient, path: str, **fields: str) -> httpx.Response:
    token = csrf_token(await visitor.get(PATH))
    return await visitor.post(f"{PATH}{path}", data={"csrf_token": token, **fields})


async def test_a_period_is_previewed_confirmed_and_shown(site: Site, visitor: httpx.AsyncClient) -> None:
    file = await site.place.files.create(site.tenant_id, None, "batch", "a.jsonl", b"{}", max_bytes=10)
    async with site.place.database.write(site.tenant_id) as session:
        aged = "UPDATE files SET created_at = created_at - :age WHERE id = :id"
        await session.execute(text(aged), {"age": timedelta(days=9), "id": file.id})
    await sign_in(visitor)
    assert "Until deleted" in (await visitor.get(PATH)).text
    preview = await visitor.get(f"{PATH}/batches", params={"days": "7"})
    assert "1 row will be deleted within minutes" in preview.text
    unconfirmed = await submit(visitor, "/batches", days="7")
    assert unconfirmed.headers["location"].endswith("/settings/retention/batches?days=7")
    assert (await submit(visitor, "/batches", days="7", confirm_deletions="yes")).status_code == 303
    page = (await visitor.get(PATH)).text
    assert "Batches: kept for 7 days." in page
    assert (await submit(visitor, "/batches", days="")).status_code == 303
    for days, status in (("x", 422), ("0", 409), ("99999999999", 422)):
        assert (await visitor.get(f"{PATH}/batches", params={"days": days})).status_code == status
    assert (await visitor.get(f"{PATH}/everything")).status_code == 404


async def test_a_hold_is_placed_and_lifted(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    assert (await submit(visitor, "/holds", data_class="files", reason=" ")).status_code == 422
    assert (await submit(visitor, "/holds", reason="case")).status_code == 422
    for fields in ({"data_class": "files"}, {"object_id": "conv_1"}, {"data_class": "everything"}):
        assert (await submit(visitor, "/holds", reason="case <7>", **fields)).status_code == 303
    page = (await visitor.get(PATH)).text
    assert page.count("case &lt;7&gt;") >= 3
    assert page.count("In force") == 3
    for hold in await RetentionService(site.place.database).holds(site.tenant_id):
        assert (await submit(visitor, f"/holds/{hold.id}/lift")).status_code == 303
    assert (await visitor.get(PATH)).text.count("In force") == 0


async def test_a_certificate_is_read_and_downloaded(site: Site, visitor: httpx.AsyncClient) -> None:
    certificate = await certified_file(site)
    await sign_in(visitor)
    assert f"/certificates/{certificate}" in (await visitor.get(PATH)).text
    path = f"{PATH}/certificates/{certificate}"
    document = json.loads((await visitor.get(f"{path}/certificate.json")).content)
    statement = verify(document)
    page = (await visitor.get(path)).text
    assert document["sha256"] in page
    assert statement["deletions"][0]["object"]["id"] in page
    pdf = await visitor.get(f"{path}/certificate.pdf")
    assert pdf.headers["content-type"] == "application/pdf"
    assert pdf.content.startswith(b"%PDF")
    assert (await visitor.get(f"{PATH}/certificates/delcert_0")).status_code == 404


async def test_others_see_periods_and_change_nothing(site: Site, visitor: httpx.AsyncClient) -> None:
    await as_role(site, visitor, "viewer")
    page = (await visitor.get(PATH)).text
    assert "Owners and admins can change periods." in page
    assert "Legal holds" not in page
    for path, fields in (("/files", {"days": "7"}), ("/holds", {"data_class": "files", "reason": "x"})):
        assert (await submit(visitor, path, **fields)).status_code == 403
