"""Rules that hold on every route, generated from the OpenAPI document."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import httpx

from tests.api.everything import MUTATING, Everything, Operation
from tests.api.test_isolation_matrix import BODIES, NOT_IDS
from tests.support.weights import CONFIG
from tokenization.codec import TextCodec

CREATED = {
    "/v1/organization/projects": {"name": "twice"},
    "/v1/organization/admin_api_keys": {"name": "twice"},
    "/v1/organization/invites": {"email": "twice@x.example", "role": "reader"},
    "/v1/organization/spend_alerts": {"currency": "USD", "interval": "month", "threshold_amount": 100},
    "/v1/webhook_endpoints": {
        "name": "twice",
        "url": "https://x.example",
        "event_types": ["invoice.finalized"],
    },
}
"""Of the account, by path: something new at each request, with a secret in the answer of some."""


async def test_what_is_created_with_an_idempotency_key_is_created_once(both: Everything) -> None:
    ours = both.ours
    for path, body in CREATED.items():
        headers = {"idempotency-key": path}
        before = len((await ours.admin.get(path)).json()["data"])
        first, second = [await ours.admin.post(path, json=body, headers=headers) for _ in range(2)]
        assert first.status_code == 200, first.text
        assert second.content == first.content
        assert second.headers["idempotency-replayed"] == "true"
        assert len((await ours.admin.get(path)).json()["data"]) == before + 1


async def test_a_file_sent_twice_with_an_idempotency_key_is_one_file(both: Everything) -> None:
    """Clients draw a new boundary for the form of each attempt."""

    async def send(content: bytes) -> httpx.Response:
        files = {"file": ("adapter_config.json", content)}
        headers = {"idempotency-key": "a-file"}
        return await both.ours.inference.post(
            "/v1/files", data={"purpose": "adapter"}, files=files, headers=headers
        )

    first, second, other = await send(CONFIG), await send(CONFIG), await send(CONFIG + b" ")
    assert first.status_code == 200, first.text
    assert first.request.headers["content-type"] != second.request.headers["content-type"]
    assert second.json() == first.json()
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")


LONG = "1" * 1000
"""Digits: more than any integer that a column or a struct holds."""
BAD_QUERIES = ("limit=x&start_time=x&order=x&version=x&stream=x&name=%00&format=x", "no_such=1")
BAD_BODIES = ((b"{", "application/json"), (b"<x/>", "text/xml"), (b"x", "multipart/form-data"))


async def test_nothing_is_judged_before_the_key(client: httpx.AsyncClient, codec: TextCodec) -> None:
    """A request without a key learns nothing of what is wrong with the rest of it."""
    del client.headers["authorization"]
    document = (await client.get("/openapi.json")).json()
    found = {}
    for path, operations in document["paths"].items():
        url = re.sub(r"\{\w+\}", "-%00-", path)
        for verb, said in operations.items():
            if not said.get("security"):
                continue
            answers = [await client.request(verb, f"{url}?{query}") for query in BAD_QUERIES]
            if verb in MUTATING:
                for content, kind in BAD_BODIES:
                    headers = {"content-type": kind}
                    answers.append(await client.request(verb, url, content=content, headers=headers))
            found[said["operationId"]] = {answer.status_code for answer in answers}
    assert len(found) > 100
    assert {name: codes for name, codes in found.items() if codes != {401}} == {}


async def test_no_unknown_query_parameter_is_ignored(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    found, asked = {}, 0
    for path, operations in document["paths"].items():
        for verb, said in operations.items():
            if not said.get("security"):
                continue
            asked += 1
            answer = await client.request(verb, re.sub(r"\{\w+\}", "x", path) + "?no_such=1")
            error = answer.json().get("error", {})
            if (error.get("code"), error.get("param")) != ("unsupported_parameter", "no_such"):
                found[said["operationId"]] = answer.text
    assert asked > 100
    assert found == {}


async def test_the_errors_that_every_route_of_a_kind_documents_are_given(both: Everything) -> None:
    """403 to a key of the other kind; 415 and 413 to a body of another type, and to one that is too large."""
    valid, found, asked = both.ours.ids | NOT_IDS, [], 0
    for operation in both.operations():
        if not operation.said.get("security"):
            continue
        asked += 1
        own, other = both.ours.inference, both.ours.admin
        if operation.of_account:
            own, other = other, own
        url = operation.url(valid) + ("?start_time=1" if "start_time" in operation.query_parameters else "")
        requests = [(other, 403, {})] if operation.name != "retrieveGeneration" else []
        if "requestBody" in operation.said:
            requests.append((own, 415, {"content": b"<x/>", "headers": {"content-type": "text/xml"}}))
            requests.append((own, 413, {"content": b" ", "headers": {"content-length": str(1 << 50)}}))
        for client, status, options in requests:
            answer = await client.request(operation.verb, url, **options)
            if answer.status_code != status or str(status) not in operation.said["responses"]:
                found.append((operation.name, status, answer.status_code, answer.text[:200]))
    assert asked > 100
    assert found == []


def odd(operation: Operation, valid: dict[str, str], odd_value: str) -> Iterator[str]:
    """URLs of the operation with one odd value each, in the path or in the query."""
    base = operation.url(valid)
    for name in operation.path_parameters:
        yield operation.url(valid | {name: odd_value})
    for name in operation.query_parameters:
        needed = (
            ""
            if name == "start_time"
            else "start_time=1&"
            if "start_time" in operation.query_parameters
            else ""
        )
        yield f"{base}?{needed}{name}={odd_value}"


def strings_of(body: Any) -> Iterator[list[Any]]:
    """Paths to each string of a body."""
    for key, value in body.items() if isinstance(body, dict) else enumerate(body):
        if isinstance(value, str):
            yield [key]
        elif isinstance(value, dict | list):
            yield from ([key, *rest] for rest in strings_of(value))


def with_odd(body: Any, path: list[Any], text: str) -> Any:
    changed = copy.deepcopy(body)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = text
    return changed


async def test_no_odd_value_in_a_url_is_a_fault_of_ours(both: Everything) -> None:
    valid = both.ours.ids | NOT_IDS
    faults, asked = [], 0
    for operation in both.operations():
        client = both.ours.admin if operation.of_account else both.ours.inference
        for url in (url for value in ("a%00b", LONG) for url in odd(operation, valid, value)):
            body = {} if operation.verb == "get" else {"json": BODIES.get(operation.name, {})}
            answer = await client.request(operation.verb, url, **body)
            asked += 1
            if answer.status_code >= 500:
                faults.append((operation.verb, url[:100], answer.status_code, answer.text[:200]))
    assert asked > 200
    assert faults == []
    answer = await both.ours.inference.get("/v1/calibration/jobs?adapter_id=%00")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "adapter_id")
    assert "U+0000" in answer.json()["error"]["message"]


async def test_no_odd_text_in_a_body_is_a_fault_of_ours(both: Everything) -> None:
    valid = both.ours.ids | NOT_IDS
    bodies = {
        operation.path: (operation, BODIES[operation.name])
        for operation in both.operations()
        if operation.name in BODIES
    }
    asked = [(op.verb, op.url(valid), op.of_account, body) for op, body in bodies.values()]
    asked += [("post", path, True, body) for path, body in CREATED.items()]
    asked.append(("post", "/v1/adapters", False, {"name": "a", "base_model": "b", "file_ids": ["x", "y"]}))
    asked.append(("post", "/v1/calibration/jobs", False, {"model": "x", "file_id": "y"}))
    asked.append(
        ("put", "/v1/organization/limits", True, {"metric": "tokens_per_day", "amount": 1, "model": "x"})
    )
    asked.append(
        ("post", "/v1/organization/billing", True, {"name": "x", "email": "a@b.example", "address": "x"})
    )
    asked.append(
        ("post", "/v1/organization/invites/accept", True, {"token": "x", "password": "a long password"})
    )
    faults = []
    for verb, url, of_account, body in asked:
        client = both.ours.admin if of_account else both.ours.inference
        for path in strings_of(body):
            for text in ("\x00", "a\x00b"):
                answer = await client.request(verb, url, json=with_odd(body, path, text))
                if answer.status_code == 200 and url.endswith("/items") and path[-1] == "content":
                    continue  # encrypted, so that any text can be stored
                if not 400 <= answer.status_code < 500:
                    faults.append((verb, url, path, answer.status_code, answer.text[:200]))
    assert faults == []
