"""Describes this SCIM service: its configuration, its resource types and their schemas (RFC 7643, 5 to 7)."""

from __future__ import annotations

from typing import Any

from api.scim.resources import GROUP, USER

MAX_RESULTS = 200
_CONFIG = "urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig"
_RESOURCE_TYPE = "urn:ietf:params:scim:schemas:core:2.0:ResourceType"
_SCHEMA = "urn:ietf:params:scim:schemas:core:2.0:Schema"


def service_provider_config(base: str) -> dict[str, Any]:
    off = {"supported": False}
    return {
        "schemas": [_CONFIG],
        "patch": {"supported": True},
        "bulk": {"supported": False, "maxOperations": 0, "maxPayloadSize": 0},
        "filter": {"supported": True, "maxResults": MAX_RESULTS},
        "changePassword": off,
        "sort": off,
        "etag": off,
        "authenticationSchemes": [
            {
                "type": "oauthbearertoken",
                "name": "Bearer token",
                "description": "A SCIM token that an owner of the organization creates in the console.",
                "primary": True,
            }
        ],
        "meta": {"resourceType": "ServiceProviderConfig", "location": f"{base}/ServiceProviderConfig"},
    }


def resource_types(base: str) -> list[dict[str, Any]]:
    return [_resource_type("User", USER, base), _resource_type("Group", GROUP, base)]


def schemas(base: str) -> list[dict[str, Any]]:
    return [
        _schema(USER, "User", "A member of the organization.", _user_attributes(), base),
        _schema(GROUP, "Group", "A group, which an owner can map to a role.", _group_attributes(), base),
    ]


def _resource_type(name: str, schema: str, base: str) -> dict[str, Any]:
    return {
        "schemas": [_RESOURCE_TYPE],
        "id": name,
        "name": name,
        "endpoint": f"/{name}s",
        "schema": schema,
        "meta": {"resourceType": "ResourceType", "location": f"{base}/ResourceTypes/{name}"},
    }


def _schema(urn: str, name: str, text: str, attributes: list[dict[str, Any]], base: str) -> dict[str, Any]:
    return {
        "schemas": [_SCHEMA],
        "id": urn,
        "name": name,
        "description": text,
        "attributes": attributes,
        "meta": {"resourceType": "Schema", "location": f"{base}/Schemas/{urn}"},
    }


def _user_attributes() -> list[dict[str, Any]]:
    name = [
        _attribute("formatted", "The whole name."),
        _attribute("familyName", "The family name."),
        _attribute("givenName", "The given name."),
    ]
    email = [
        _attribute("value", "The address.", required=True),
        _attribute("type", "What the address is used for.", canonicalValues=["work", "home", "other"]),
        _attribute("primary", "Whether the user signs in with this address.", "boolean"),
    ]
    group = [
        _attribute("value", "The group's id.", mutability="readOnly"),
        _reference("The group.", "Group", "readOnly"),
        _attribute("display", "The group's name.", mutability="readOnly"),
    ]
    return [
        _attribute("userName", "The name of the user at the provider.", required=True, uniqueness="server"),
        _attribute("name", "The parts of the name.", "complex", subAttributes=name),
        _attribute("displayName", "The name that the console shows."),
        _attribute(
            "emails",
            "Email addresses. Where none is sent, userName must be one.",
            "complex",
            multiValued=True,
            required=True,
            subAttributes=email,
        ),
        _attribute(
            "active",
            "Whether the user can sign in and use keys; true where it is not sent.",
            "boolean",
            required=True,
        ),
        _attribute(
            "groups",
            "The groups that the user is in.",
            "complex",
            multiValued=True,
            mutability="readOnly",
            subAttributes=group,
        ),
    ]


def _group_attributes() -> list[dict[str, Any]]:
    member = [
        _attribute("value", "The user's id.", mutability="immutable"),
        _reference("The user.", "User", "immutable"),
        _attribute("type", "Always User.", mutability="immutable", canonicalValues=["User"]),
    ]
    return [
        _attribute("displayName", "The name of the group.", required=True, uniqueness="server"),
        _attribute("members", "The users in the group.", "complex", multiValued=True, subAttributes=member),
    ]


def _reference(text: str, kind: str, mutability: str) -> dict[str, Any]:
    return _attribute("$ref", text, "reference", referenceTypes=[kind], mutability=mutability)


def _attribute(name: str, text: str, kind: str = "string", **characteristics: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": kind,
        "multiValued": False,
        "description": text,
        "required": False,
        "mutability": "readWrite",
        "returned": "default",
        **({"caseExact": False} if kind == "string" else {}),
        "uniqueness": "none",
        **characteristics,
    }
