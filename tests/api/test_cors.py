"""Web pages of other origins: what browsers ask first, which keys pages may use, what they may read."""

from __future__ import annotations

import httpx
import pytest

from tests.api.conftest import World
from tests.api.fakes import BROWSER_KEY, KEY

APP = "https://app.example"
CHAT = {"model": "sapling", "messages": [{"role": "user", "content": "x"}]}
ASKED = {
    "origin": APP,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang, x-stainless-os",
}


def headers(key: str, origin: str | None = APP, site: str = "cross-site") -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} | (
        {} if origin is None else {"origin": origin, "sec-fetch-site": site}
    )


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/files/file_a"])
async def test_preflights_are_granted_without_a_key(client: httpx.AsyncClient, path: str) -> None:
    response = await client.options(path, headers=ASKED | {"authorization": ""})
    assert (response.status_code, response.content) == (204, b"")
    granted = response.headers
    assert granted["access-control-allow-origin"] == APP
    assert granted["access-control-allow-methods"] == "POST"
    assert granted["access-control-allow-headers"] == ASKED["access-control-request-headers"]
    assert "origin" in granted["vary"]
    assert "access-control-allow-credentials" not in granted


@pytest.mark.parametrize(
    ("path", "changed"),
    [
        ("/v1/models", {"origin": "null"}),
        ("/v1/models", {"origin": "https://" + "a" * 1000}),
        ("/v1/models", {"access-control-request-method": "BREW"}),
        ("/v1/models", {"access-control-request-headers": "x y"}),
        ("/v1/models", {"access-control-request-headers": ",".join(["x"] * 65)}),
        ("/livez", {}),
        ("/console/keys", {}),
    ],
)
async def test_other_preflights_are_not(
    client: httpx.AsyncClient, path: str, changed: dict[str, str]
) -> None:
    response = await client.options(path, headers=ASKED | changed)
    assert response.status_code in (404, 405)
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("stream", [False, True])
async def test_pages_of_a_keys_origins_may_use_it(client: httpx.AsyncClient, stream: bool) -> None:
    response = await client.post(
        "/v1/chat/completions", json=CHAT | {"stream": stream}, headers=headers(BROWSER_KEY)
    )
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == APP
    assert "origin" in response.headers["vary"]
    exposed = response.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "retry-after", "x-ratelimit-remaining-tokens"} <= set(exposed)


async def test_pages_may_read_errors_too(client: httpx.AsyncClient) -> None:
    response = await client.post(
        "/v1/chat/completions", json=CHAT | {"model": "none"}, headers=headers(BROWSER_KEY)
    )
    assert response.status_code == 404
    assert response.headers["access-control-allow-origin"] == APP


@pytest.mark.parametrize("key", [KEY, BROWSER_KEY])
@pytest.mark.parametrize(
    "origin", ["https://other.example", "http://app.example", "https://app.example:8443"]
)
async def test_pages_of_other_origins_may_not(
    client: httpx.AsyncClient, world: World, key: str, origin: str
) -> None:
    response = await client.post("/v1/chat/completions", json=CHAT, headers=headers(key, origin))
    assert response.status_code == 403
    error = response.json()["error"]
    assert (error["code"], origin in error["message"]) == ("insufficient_permissions", True)
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert world.engine.submitted == []


@pytest.mark.parametrize(
    ("key", "origin", "site"),
    [
        (KEY, "https://other.example", ""),  # a program
        (KEY, "https://other.example", "none"),  # a browser's extension
        (KEY, APP, "same-origin"),
        (KEY, None, ""),
        (BROWSER_KEY, None, ""),
    ],
)
async def test_clients_that_are_no_foreign_pages_are_served_as_ever(
    client: httpx.AsyncClient, key: str, origin: str | None, site: str
) -> None:
    response = await client.post("/v1/chat/completions", json=CHAT, headers=headers(key, origin, site))
    assert response.status_code == 200
    assert not [name for name in response.headers if name.startswith("access-control")]
