"""The console's static files: names with a digest, compression, revalidation."""

from __future__ import annotations

import gzip
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from admin.web.assets import FOLDER, Assets, console_assets

STYLES = "a { color: red }\n" * 200


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "console.css").write_text(STYLES)
    (tmp_path / "mark.svg").write_text("<svg/>")
    return tmp_path


def client_of(assets: Assets) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(Starlette(routes=[assets.routes()]))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


async def test_the_hashed_name_is_kept_for_a_year_and_compressed(folder: Path) -> None:
    assets = Assets(folder)
    async with client_of(assets) as client:
        path = f"/static/{assets.name_in_url('console.css')}"
        answer = await client.get(path, headers={"accept-encoding": "gzip"})
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["content-type"] == "text/css; charset=utf-8"
        assert answer.headers["content-encoding"] == "gzip"
        assert int(answer.headers["content-length"]) == len(gzip.compress(STYLES.encode(), 6, mtime=0)) < 200
        assert answer.text == STYLES
        plain = await client.get(path, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.text == STYLES
        assert (await client.head(path)).status_code == 200


async def test_the_plain_name_is_revalidated(folder: Path) -> None:
    async with client_of(Assets(folder)) as client:
        answer = await client.get("/static/console.css")
        assert answer.headers["cache-control"] == "no-cache"
        again = {"if-none-match": answer.headers["etag"]}
        unchanged = await client.get("/static/console.css", headers=again)
        assert (unchanged.status_code, unchanged.content) == (304, b"")


async def test_another_content_has_another_name(folder: Path) -> None:
    before = Assets(folder)
    (folder / "console.css").write_text("a { color: blue }")
    after = Assets(folder)
    assert after.name_in_url("console.css") != before.name_in_url("console.css")
    assert after.name_in_url("mark.svg") == before.name_in_url("mark.svg")
    async with client_of(after) as client:
        of_last_release = await client.get(f"/static/{before.name_in_url('console.css')}")
        assert of_last_release.text == "a { color: blue }"
        assert of_last_release.headers["cache-control"] == "no-cache", "or the old page would keep new styles"


@pytest.mark.parametrize("name", ["absent.css", "console.000000000000.js", "..%2fassets.py", "%2e%2e/secret"])
async def test_nothing_else_is_served(folder: Path, name: str) -> None:
    async with client_of(Assets(folder)) as client:
        assert (await client.get(f"/static/{name}")).status_code == 404


def test_a_template_cannot_name_a_missing_file() -> None:
    assert {path.name for path in FOLDER.iterdir()} >= {"console.css", "mark.svg"}
    with pytest.raises(KeyError):
        console_assets().name_in_url("absent.css")
