"""`/v1/tokenize` and `/v1/detokenize`: the tokens are those of the same request to generate."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.conftest import World

HELLO = [{"role": "user", "content": "Hello, wörld"}]


async def tokenize(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/tokenize", json={"model": "sapling", **fields})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize(
    ("path", "fields"),
    [("chat/completions", {"messages": HELLO}), ("completions", {"prompt": "Hello, wörld"})],
)
async def test_tokens_are_those_that_the_model_is_given(
    client: httpx.AsyncClient, world: World, path: str, fields: dict[str, Any]
) -> None:
    counted = await tokenize(client, **fields, return_token_strs=True)
    body = {"model": "sapling", "max_tokens": 1, **fields}
    generated = await client.post(f"/v1/{path}", json=body)
    assert generated.json()["usage"]["prompt_tokens"] == counted["count"]
    assert world.engine.submitted[-1].prompt_ids == counted["tokens"]
    assert counted["max_model_len"] == world.engine.info.context_length
    assert len(counted["token_strs"]) == counted["count"]
    text = await client.post("/v1/detokenize", json={"model": "sapling", "tokens": counted["tokens"]})
    assert "Hello, wörld" in text.json()["prompt"]
    assert len(world.engine.submitted) == 1, "counting generates nothing"


async def test_special_tokens_are_left_out_on_request(client: httpx.AsyncClient) -> None:
    with_bos = await tokenize(client, prompt="abc", add_special_tokens=True)
    without = await tokenize(client, prompt="abc", add_special_tokens=False)
    assert with_bos["tokens"][-len(without["tokens"]) :] == without["tokens"]
    assert without["token_strs"] is None
    text = await client.post("/v1/detokenize", json={"model": "sapling", "tokens": without["tokens"]})
    assert text.json() == {"prompt": "abc"}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": "a", "messages": HELLO}, "prompt"),
        ("tokenize", {"messages": HELLO, "add_special_tokens": True}, "add_special_tokens"),
        ("tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("tokenize", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ("tokenize", {"prompt": "a " * 100_000}, "prompt"),
        ("detokenize", {"tokens": [10**9]}, "tokens"),
        ("detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("detokenize", {}, "tokens"),
    ],
)
async def test_refusals_name_the_field(
    client: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str
) -> None:
    response = await client.post(f"/v1/{path}", json={"model": "sapling", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("path", ["tokenize", "detokenize"])
async def test_another_tenants_model_is_not_found(client: httpx.AsyncClient, path: str) -> None:
    fields = {"prompt": "a"} if path == "tokenize" else {"tokens": [5]}
    response = await client.post(f"/v1/{path}", json={"model": "sapling:theirs", **fields})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
