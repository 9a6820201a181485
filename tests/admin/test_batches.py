"""The batches section: progress, files and cancelling, and which roles may do what."""

from __future__ import annotations

import httpx
import pytest
from sqlalchemy import text

from batches.models import Batch
from batches.service import BatchService, NewBatch
from db.session import EVERY_TENANT
from tenants.actors import OPERATOR
from tenants.caller_contexts import CallerContexts
from tenants.errors import UserNotFound
from tenants.roles import Role
from tests.admin.conftest import Site, csrf_token, sign_in
from tests.admin.test_keys import act, as_role

ENDPOINT = "/v1/chat/completions"


async def made(site: Site, **columns: object) -> Batch:
    """A batch whose row has these values."""
    file = await site.place.files.create(
        site.tenant_id, None, "batch", "lines.jsonl", b'{"custom_id": "a"}\n', max_bytes=1000
    )
    batches = BatchService(site.place.database, site.place.store)
    batch = await batches.create(site.tenant_id, "key_1", NewBatch(file.id, ENDPOINT), OPERATOR)
    if columns:
        settings = ", ".join(f"{name} = :{name}" for name in columns)
        async with site.place.database.write(EVERY_TENANT) as session:
            statement = text(f"UPDATE batches SET {settings} WHERE id = :id")
            await session.execute(statement, columns | {"id": batch.id})
    return batch


async def test_progress_and_cost_are_shown_while_a_batch_runs(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    assert "No batches yet" in (await visitor.get("/batches")).text
    batch = await made(
        site, status="in_progress", total=200, completed=149, failed=1, cost=1_234_560, lease_owner="api"
    )

    listed = (await visitor.get("/batches")).text
    shown = (await visitor.get(f"/batches/{batch.id}")).text

    for words in (batch.id, "In progress", "75 %", "149 of 200", "1 failed", "$1.23456", " data-pending"):
        assert words in listed, words
    for words in ('value="75"', "149 completed, 1 failed, 200 in total", "$1.234560", "Cancel batch"):
        assert words in shown, words


async def create(
    visitor: httpx.AsyncClient,
    content: bytes = b'{"custom_id": "a"}\n',
    name: str = "lines.jsonl",
    **fields: str,
) -> httpx.Response:
    token = csrf_token(await visitor.get("/batches"))
    form = {"csrf_token": token, "endpoint": ENDPOINT} | fields
    return await visitor.post("/batches/new", data=form, files={"file": (name, content)})


async def test_a_file_becomes_a_batch_of_the_member(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    assert "New batch" in (await visitor.get("/batches")).text
    assert ENDPOINT in (await visitor.get("/batches/new")).text

    answer = await create(visitor)

    assert answer.status_code == 303
    ((batch,), _) = await BatchService(site.place.database, site.place.store).page(
        site.tenant_id, after=None, limit=10
    )
    (me,) = await site.account.members.list(site.tenant_id)
    assert answer.headers["location"].endswith(f"/batches/{batch.id}")
    assert (batch.created_by, batch.endpoint, batch.status) == (me.id, ENDPOINT, "validating")
    page = (await visitor.get(f"/batches/{batch.id}")).text
    assert "Batch created." in page
    assert " data-pending" in page
    assert me.email in page
    caller = await CallerContexts(site.place.database).of(site.tenant_id, batch.created_by)
    assert (caller.key_id, caller.user_id) == (me.id, me.id)


async def test_a_file_that_cannot_be_a_batch_is_refused_beside_its_field(
    site: Site, visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sign_in(visitor)
    elsewhere = await create(visitor, endpoint="/v1/embeddings")
    monkeypatch.setattr("admin.batches.creation_routes.MAX_INPUT_BYTES", 100)
    missing, large = await create(visitor, name=""), await create(visitor, b"x" * 101)
    monkeypatch.setattr("batches.service.MAX_OPEN", 0)
    many = await create(visitor)

    for answer, status, words in (
        (elsewhere, 422, "Choose one of these endpoints: /v1/chat/completions"),
        (missing, 422, "Choose a file."),
        (large, 413, "100"),
        (many, 429, "unfinished batches are the most"),
    ):
        assert answer.status_code == status, answer.text
        assert words in answer.text
        assert 'action="/console/batches/new"' in answer.text
    files = await site.place.files.list(site.tenant_id)
    assert files.files == [], "no file is kept without its batch"


async def test_only_roles_that_run_requests_create_batches(site: Site, visitor: httpx.AsyncClient) -> None:
    await as_role(site, visitor, "viewer")
    assert "New batch" not in (await visitor.get("/batches")).text
    assert (await visitor.get("/batches/new")).status_code == 403

    refused = await create(visitor)

    assert refused.status_code == 403
    assert "Your role (viewer) doesn&#39;t allow this." in refused.text


async def test_a_member_without_the_right_runs_no_batch_any_more(site: Site) -> None:
    callers = CallerContexts(site.place.database)
    user = await site.accounts.create(site.tenant_id, "dev@acme.example", "a long password", role="developer")
    assert (await callers.of(site.tenant_id, user.user_id)).key_id == user.user_id

    await site.account.members.update(site.tenant_id, user.user_id, OPERATOR, role="viewer")

    with pytest.raises(UserNotFound):
        await callers.of(site.tenant_id, user.user_id)
    key = await site.keys.create(site.tenant_id, "theirs", OPERATOR)
    assert (await callers.of(site.tenant_id, key.id)).key_id == key.id


async def test_cancelling(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    batch = await made(site, status="in_progress", total=2, lease_owner="api")
    path = f"/batches/{batch.id}"

    answer = await act(visitor, path, f"{path}/cancel")

    assert answer.status_code == 303
    page = (await visitor.get(path)).text
    assert "Cancelling" in page
    assert "is being cancelled" in page
    assert f"{path}/cancel" not in page


async def test_files_are_downloaded(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    batch = await made(site)
    path = f"/batches/{batch.id}"
    assert (await visitor.get(f"{path}/output")).status_code == 404
    async with site.place.database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE batches SET status = 'completed', output_file_id = input_file_id"))

    answer = await visitor.get(f"{path}/output")

    assert answer.content == b'{"custom_id": "a"}\n'
    assert "attachment" in answer.headers["content-disposition"]
    assert "Download output" in (await visitor.get(path)).text
    assert "Download errors" not in (await visitor.get(path)).text


@pytest.mark.parametrize(
    ("role", "sees", "may"), [("developer", 200, 200), ("viewer", 200, 403), ("billing", 403, 403)]
)
async def test_roles(site: Site, visitor: httpx.AsyncClient, role: Role, sees: int, may: int) -> None:
    batch = await made(site, status="completed", cost=5_000_000)
    async with site.place.database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE batches SET output_file_id = input_file_id"))
    await as_role(site, visitor, role)

    page = await visitor.get(f"/batches/{batch.id}")

    assert page.status_code == sees
    assert (await visitor.get(f"/batches/{batch.id}/output")).status_code == may
    assert ("Download output" in page.text) == (may == 200)
    assert "$5" not in page.text, "costs are for roles that see billing"


async def test_another_tenants_batch_is_not_found(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    batch = await made(site)
    async with site.place.database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE batches SET tenant_id = :other"), {"other": site.place.tenants[1]})

    assert (await visitor.get(f"/batches/{batch.id}")).status_code == 404
    assert (await visitor.get("/batches/batch_nonsense")).status_code == 404
