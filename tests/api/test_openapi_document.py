"""What the OpenAPI document says of every operation: texts, schemas and errors, without a server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Generic, NotRequired, TypedDict, TypeVar

import httpx
import jsonschema_rs
import pytest

from api.errors import ERROR_RESPONSES
from api.openapi import errors, guide
from api.openapi.components import components_of, schema_of
from api.openapi.document import operations_of
from tenants.ip_networks import parse_networks
from tenants.web_origins import parse_origins

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


def test_two_types_of_one_name_are_refused() -> None:
    class Thing(TypedDict):
        name: str

    with pytest.raises(ValueError, match="have one name in the document"):
        components_of([ThingObject, Thing])


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ("CreateProjectRequest", "name"),
        ("CreateUploadRequest", "mime_type"),
        ("CreateUploadRequest", "filename"),
        ("SetLimitRequest", "model"),
    ],
)
async def test_patterns_of_texts_know_invisible_characters(
    document: dict[str, Any], schema: str, field: str
) -> None:
    found = document["components"]["schemas"][schema]["properties"][field]
    validator = jsonschema_rs.Draft202012Validator(found)
    assert validator.is_valid("sapling")
    for text in ("a\u200b", "\u202eb", "a\n", "\x00", "\x85", "\ue000", "\U000e0041", "\u2028"):
        assert not validator.is_valid(text), ascii(text)
    assert validator.is_valid("Zoë 日本 😀") == (field != "model")


async def test_network_and_origin_patterns_fit_what_the_services_accept(document: dict[str, Any]) -> None:
    fields = document["components"]["schemas"]["CreateAdminKeyRequest"]["properties"]
    network = jsonschema_rs.Draft202012Validator(fields["networks"]["items"])
    for one in (
        "10.0.0.0/8",
        "192.0.2.7",
        "::",
        "::/0",
        "2001:db8::/32",
        "::ffff:1.2.3.4",
        "1:2:3:4:5:6:7:8",
    ):
        assert parse_networks([one])
        assert network.is_valid(one), one
    for one in ("", "10.0.0", "256.0.0.1", "10.0.0.0/33", "::/129", "example.com"):
        assert not network.is_valid(one), one
    origin = jsonschema_rs.Draft202012Validator(fields["origins"]["items"])
    for one in ("https://app.example", "HTTP://Localhost:3000", "http://[::1]:80", "tauri://x"):
        assert parse_origins([one])
        assert origin.is_valid(one), one
    for one in ("app.example", "https://a/b", "https://", "https://\u212a.example"):
        assert not origin.is_valid(one), one
        with pytest.raises(ValueError, match="is not an origin"):
            parse_origins([one])


async def test_a_stored_metric_is_limited_for_the_organization_alone(document: dict[str, Any]) -> None:
    schema = {"$ref": "#/components/schemas/SetLimitRequest", "components": document["components"]}
    validator = jsonschema_rs.Draft202012Validator(schema)
    assert validator.is_valid({"metric": "adapters", "amount": 5, "project_id": None, "model": ""})
    for more in ({"project_id": "proj_1"}, {"api_key_id": "key_1"}, {"model": "sapling"}):
        assert not validator.is_valid({"metric": "adapters", "amount": 5} | more), more
        assert validator.is_valid({"metric": "tokens_per_day", "amount": 5} | more), more
    assert not validator.is_valid({"metric": "requests_per_minute", "amount": 10**11 + 1})
    assert not validator.is_valid({"metric": "prepaid_balance", "amount": 1})


async def test_an_invitation_names_projects_by_the_fields_of_a_request(document: dict[str, Any]) -> None:
    projects = document["components"]["schemas"]["CreateInviteRequest"]["properties"]["projects"]
    reference = projects["anyOf"][0]["items"]["$ref"]
    project = document["components"]["schemas"][reference.rpartition("/")[2]]
    assert project["additionalProperties"] is False
    assert project["properties"]["role"]["enum"] == ["member", "owner"]


async def test_patterns_are_those_of_every_language(document: dict[str, Any]) -> None:
    """Generated clients compile them: Python has no Unicode classes, ECMAScript no \\A and \\Z."""

    def patterns(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            if isinstance(part.get("pattern"), str):
                yield part["pattern"]
            for inner in part.values():
                yield from patterns(inner)
        elif isinstance(part, list):
            for inner in part:
                yield from patterns(inner)

    found = set(patterns(document))
    assert len(found) > 10
    for pattern in found:
        assert re.compile(pattern)
        assert not re.search(r"\\[AZpP]|\(\?", pattern), pattern


async def test_every_operation_says_whether_it_needs_a_key(document: dict[str, Any]) -> None:
    assert document["servers"] == [{"url": "/"}]
    for path, verb, operation in operations_of(document):
        assert "security" in operation, f"{verb} {path}"
        assert {"408", "431", "500"} <= operation["responses"].keys(), f"{verb} {path}"


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
