"""Defines the JSON request bodies of workload identity: the fields of OpenAI's client, and ours."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from api.body_fields import Body, Id, Name
from api.organization.request_bodies import Scopes
from tenants.outbound.addresses import URL
from tenants.validation import PRINTABLE
from tenants.workload_identity.service import MAX_TOKEN_SECONDS, MIN_TOKEN_SECONDS, TOKEN_SECONDS

Url = Annotated[
    str, Meta(min_length=1, max_length=2000, extra_json_schema={"format": "uri", "pattern": rf"^{URL}$"})
]
_PRINTABLE = {"pattern": f"^{PRINTABLE}$", "not": {"pattern": "^ *$"}}
Text = Annotated[str, Meta(min_length=1, max_length=500, extra_json_schema=_PRINTABLE)]
Seconds = Annotated[int, Meta(ge=MIN_TOKEN_SECONDS, le=MAX_TOKEN_SECONDS)]
_Value = Annotated[str, Meta(min_length=1, max_length=500)] | bool | int
Matchers = Annotated[dict[str, _Value], Meta(min_length=1, max_length=20)]


class Discovery(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="discovery", tag_field="type"
):
    """The issuer publishes its keys."""

    discovery_url: Url | None = None
    """Where its configuration is; null: at `/.well-known/openid-configuration` of the issuer."""


class UploadedKeys(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="uploaded_jwks", tag_field="type"
):
    """The issuer's keys are uploaded, and replaced by hand."""

    jwks: dict[str, Any]
    """A JSON Web Key Set of public keys."""


Verification = Discovery | UploadedKeys


class AttributeTransformation(Body, frozen=True, kw_only=True):
    attribute: str
    expression: str


_TRANSFORMATIONS = Annotated[list[AttributeTransformation], Meta(max_length=0)]
"""None are supported; OpenAI's client sends an empty list."""


class CreateIdentityProviderRequest(Body, frozen=True, kw_only=True):
    name: Name
    type: Literal["oidc"]
    issuer: Url
    """`iss` of its tokens, exactly."""
    audience: Text
    """A value that `aud` of its tokens must have. Choose one that is this service's alone."""
    description: Text | None = None
    enabled: bool = True
    verification: Verification = Discovery()
    attribute_transformations: _TRANSFORMATIONS = field(default_factory=list)
    token_seconds: Seconds = TOKEN_SECONDS
    """Lifetime of the keys."""
    single_use: bool = True
    """Whether each token can be exchanged once only. Turn it off where a platform hands out the same token
    again, as Kubernetes does.
    """


class UpdateIdentityProviderRequest(Body, frozen=True, kw_only=True):
    name: Name | UnsetType = UNSET
    issuer: Url | UnsetType = UNSET
    audience: Text | UnsetType = UNSET
    description: Text | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    """`false` revokes the keys that its tokens were exchanged for."""
    verification: Verification | UnsetType = UNSET
    attribute_transformations: _TRANSFORMATIONS | UnsetType = UNSET
    token_seconds: Seconds | UnsetType = UNSET
    single_use: bool | UnsetType = UNSET


class DefaultPermissions(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag="service_account_default",
    tag_field="type",
):
    """All scopes of inference keys."""


class RestrictedPermissions(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="restricted", tag_field="type"
):
    """Some scopes."""

    scopes: Annotated[Scopes, Meta(min_length=1)]


Permissions = DefaultPermissions | RestrictedPermissions


class CreateFederationRuleRequest(Body, frozen=True, kw_only=True):
    project_id: Id
    service_account_id: Id
    attribute_matchers: Matchers
    """By claim, what it must be. Text may end with `*`, which stands for any ending. All must match."""
    name: Name | None = None
    description: Text | None = None
    enabled: bool = True
    permissions: Permissions = DefaultPermissions()


class UpdateFederationRuleRequest(Body, frozen=True, kw_only=True):
    attribute_matchers: Matchers | UnsetType = UNSET
    name: Name | UnsetType | None = UNSET
    description: Text | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    """`false` revokes the keys of the rule."""
    permissions: Permissions | UnsetType = UNSET


BODIES = (
    CreateIdentityProviderRequest,
    UpdateIdentityProviderRequest,
    CreateFederationRuleRequest,
    UpdateFederationRuleRequest,
)
