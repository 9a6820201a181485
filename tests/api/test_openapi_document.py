"""What the OpenAPI document says of every operation: texts, schemas and errors, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, NotRequired, TypedDict, TypeVar

import httpx
import pytest

from api.errors import ERROR_RESPONSES
from api.openapi import errors, guide
from api.openapi.components import components_of, schema_of
from api.openapi.document import operations_of

T = TypeVar("T")


class Page(TypedDict, Generic[T]):
    data: list[T]


class _Named(TypedDict):
    name: str
    """What it is called, by
    people."""


class ThingObject(_Named):
    """A thing."""

    id: str
    size: NotRequired[int | None]
    """Bytes."""


@pytest.fixture
async def document(client: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/openapi.json")).json()
    return found


def responses_of(document: dict[str, Any], operation: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for status, response in operation["responses"].items():
        name = response.get("$ref", "").rpartition("/")[2]
        yield status, document["components"]["responses"][name] if name else response


def test_components_have_the_fields_in_order_with_the_docstrings_below_them() -> None:
    found = components_of([Page[ThingObject]])
    assert found["ThingList"]["properties"]["data"]["items"] == schema_of(ThingObject)
    assert schema_of(Page[ThingObject]) == {"$ref": "#/components/schemas/ThingList"}
    thing = found["Thing"]
    assert list(thing["properties"]) == ["name", "id", "size"]
    assert thing["required"] == ["name", "id"]
    assert thing["description"] == "A thing."
    assert thing["properties"]["name"] == {"type": "string", "description": "What it is called, by people."}
    assert thing["properties"]["size"]["description"] == "Bytes."


async def test_every_operation_reads_as_a_reference(document: dict[str, Any]) -> None:
    tags = [tag["name"] for tag in document["tags"]]
    assert sorted(tag for group in document["x-tagGroups"] for tag in group["tags"]) == sorted(tags)
    used = set()
    for path, verb, operation in operations_of(document):
        name = f"{verb} {path}"
        assert operation["summary"][0].isupper(), name
        assert not operation["summary"].endswith("."), name
        assert operation["description"].endswith("."), name
        used.update(operation["tags"])
        for parameter in operation.get("parameters", ()):
            assert parameter["in"] != "path" or parameter["description"].endswith("."), name
    assert used == set(guide.TAGS)


async def test_every_success_has_a_schema(document: dict[str, Any]) -> None:
    typed = 0
    for path, verb, operation in operations_of(document):
        for status, response in responses_of(document, operation):
            if status.startswith("2"):
                assert response["content"], f"{verb} {path}"
                for media_type, content in response["content"].items():
                    assert content.get("schema"), f"{verb} {path} {media_type}"
                    typed += "$ref" in content["schema"]
    assert typed > 100


async def test_errors_are_those_of_the_table(document: dict[str, Any]) -> None:
    """Each by its own status, with bodies that the server makes."""
    statuses = {face.status for face in ERROR_RESPONSES.values()}
    for path, verb, operation in operations_of(document):
        for status, response in responses_of(document, operation):
            if status.startswith("2") or path == "/readyz" or path == "/health":
                continue
            name = f"{verb} {path} {status}"
            content = response["content"]["application/json"]
            assert int(status) in statuses, name
            assert content["schema"] == {"$ref": "#/components/schemas/Error"}, name
            assert response["description"] == errors.DESCRIPTIONS[int(status)], name
            for example in content["examples"].values():
                assert set(example["value"]["error"]) == {"message", "type", "param", "code"}, name
                assert example["value"]["error"]["code"] == example["summary"], name


async def test_only_operations_with_a_body_have_its_errors(document: dict[str, Any]) -> None:
    for path, verb, operation in operations_of(document):
        has_body = "requestBody" in operation
        found = set(operation["responses"])
        assert {"413", "415"} <= found if has_body else not found & {"413", "415"}, f"{verb} {path}"
        assert ("401" in found) == ("403" in found) == bool(operation.get("security")), f"{verb} {path}"
        assert not any(status.endswith("XX") for status in found), f"{verb} {path}"
