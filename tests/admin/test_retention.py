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


class Visit:
    """A visitor of the page, whose forms have one token."""

    def __init__(self, visitor: httpx.AsyncClient, page: httpx.Response) -> None:
        self._visitor, self._token, self.page = visitor, csrf_token(page), page.text

    async def submit(self, path: str, **fields: str) -> httpx.Response:
        return await self._visitor.post(f"{PATH}{path}", data={"csrf_token": self._token, **fields})


async def test_periods_holds_and_certificates(site: Site, visitor: httpx.AsyncClient) -> None:
    file = await site.place.files.create(site.tenant_id, None, "batch", "a.jsonl", b"{}", max_bytes=10)
    async with site.place.database.write(site.tenant_id) as session:
        aged = "UPDATE files SET created_at = created_at - :age WHERE id = :id"
        await session.execute(text(aged), {"age": timedelta(days=9), "id": file.id})
    certificate = await certified_file(site)
    await sign_in(visitor)
    visit = Visit(visitor, await visitor.get(PATH))
    assert f"/certificates/{certificate}" in visit.page
    preview = await visitor.get(f"{PATH}/batches", params={"days": "7"})
    assert "1 row will be deleted within minutes" in preview.text
    unconfirmed = await visit.submit("/batches", days="7")
    assert unconfirmed.headers["location"].endswith("/settings/retention/batches?days=7")
    assert (await visit.submit("/batches", days="7", confirm_deletions="yes")).status_code == 303
    for days, status in (("x", 422), ("0", 409)):
        assert (await visitor.get(f"{PATH}/batches", params={"days": days})).status_code == status
    assert (await visitor.get(f"{PATH}/everything")).status_code == 404

    service = RetentionService(site.place.database)
    assert (await visit.submit("/holds", data_class="files", reason=" ")).status_code == 422
    assert (await visit.submit("/holds", reason="case")).status_code == 422
    for fields in ({"object_id": "conv_1"}, {"data_class": "everything"}):
        assert (await visit.submit("/holds", reason="case <7>", **fields)).status_code == 303
    page = (await visitor.get(PATH)).text
    assert "Legal hold hold_" in page
    assert (page.count("case &lt;7&gt;") >= 2, page.count("In force")) == (True, 2)
    for hold in await service.holds(site.tenant_id):
        assert (await visit.submit(f"/holds/{hold.id}/lift")).status_code == 303
    assert all(hold.lifted_at for hold in await service.holds(site.tenant_id))

    path = f"{PATH}/certificates/{certificate}"
    document = json.loads((await visitor.get(f"{path}/certificate.json")).content)
    deleted = verify(document)["deletions"][0]["object"]["id"]
    page = (await visitor.get(path)).text
    assert (document["sha256"] in page, deleted in page) == (True, True)
    pdf = await visitor.get(f"{path}/certificate.pdf")
    assert (pdf.headers["content-type"], pdf.content[:4]) == ("application/pdf", b"%PDF")
    assert (await visitor.get(f"{PATH}/certificates/delcert_0")).status_code == 404


async def test_others_see_periods_and_change_nothing(site: Site, visitor: httpx.AsyncClient) -> None:
    await as_role(site, visitor, "viewer")
    visit = Visit(visitor, await visitor.get(PATH))
    assert "Owners and admins can change periods." in visit.page
    assert "Legal holds" not in visit.page
    for path, fields in (("/files", {"days": "7"}), ("/holds", {"data_class": "files", "reason": "x"})):
        assert (await visit.submit(path, **fields)).status_code == 403
