"""What the stock client has beside what is served: refused like any path that there is not."""

from __future__ import annotations

import httpx
import pytest

NOT_SERVED = (
    "/organization/certificates",
    "/organization/external_keys",
    "/organization/projects/proj_1/certificates",
    "/organization/projects/proj_1/groups",
    "/projects/proj_1/roles",
)


@pytest.mark.parametrize("path", NOT_SERVED)
async def test_nothing_of_it_is_taken_and_ignored(client: httpx.AsyncClient, path: str) -> None:
    for method in ("GET", "POST"):
        answer = await client.request(method, f"/v1{path}", json={"name": "x"})
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"
