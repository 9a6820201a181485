"""Defines the JSON request bodies of `/v1/organization`: the fields of OpenAI's client, and ours.

A field that is left out of an update keeps its value.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from api.body_fields import Body, Id, Name
from api.organization.scopes import SCOPES
from billing.rates import MICRO_USD_PER_CENT
from tenants.context import KeyKind
from tenants.ip_networks import NETWORK
from tenants.limits.kinds import COVERED_MODEL, MAX_AMOUNT, MAX_RATE, Metric
from tenants.retention.classes import LONGEST_DAYS, DataClass
from tenants.roles import ROLES
from tenants.validation import PRINTABLE
from tenants.web_origins import ORIGIN


def _scope_of(kind: KeyKind) -> Meta:
    """Returns the type of a key's scopes: the OpenAPI document lists them, and services validate them."""
    return Meta(pattern=r"^[a-z0-9_.:-]{1,64}$", extra_json_schema={"enum": sorted(SCOPES[kind])})


Email = Annotated[
    str,
    Meta(
        max_length=254, pattern=r"^[^@\s\x00]{1,64}@[^@\s\x00]{1,189}$", extra_json_schema={"format": "email"}
    ),
]
Seconds = Annotated[int, Meta(ge=1, le=10 * 366 * 86_400)]
Scopes = Annotated[list[Annotated[str, _scope_of("inference")]], Meta(max_length=64)]
AdminScopes = Annotated[list[Annotated[str, _scope_of("admin")]], Meta(max_length=64)]
_Model = Annotated[
    str, Meta(min_length=1, max_length=200, extra_json_schema={"pattern": rf"^{COVERED_MODEL}$"})
]
_Network = Annotated[
    str, Meta(min_length=2, max_length=50, extra_json_schema={"format": "cidr", "pattern": rf"^{NETWORK}$"})
]
_Origin = Annotated[str, Meta(min_length=4, max_length=300, extra_json_schema={"pattern": rf"^{ORIGIN}$"})]
Models = Annotated[list[_Model], Meta(max_length=256)]
Networks = Annotated[list[_Network], Meta(max_length=64)]
Origins = Annotated[list[_Origin], Meta(max_length=32)]
Amount = Annotated[int, Meta(ge=0, le=2**62, extra_json_schema={"maximum": MAX_AMOUNT})]
_Rate = Annotated[int, Meta(ge=0, le=2**62, extra_json_schema={"maximum": MAX_RATE})]
# Constraints for the OpenAPI document only: services check them with error messages of their own.
_ROLE = Meta(extra_json_schema={"enum": [*ROLES, "reader"]})
_ROLE_ID = Meta(extra_json_schema={"enum": [f"role-{role}" for role in ROLES]})
_PROJECTS = Meta(max_length=100, extra_json_schema={"uniqueItems": True})
ProjectRole = Literal["owner", "member"]


# Keys -----------------------------------------------------------------------------------------------------


class CreateAdminKeyRequest(Body, frozen=True, kw_only=True):
    name: Name
    expires_in_seconds: Seconds | None = None
    scopes: AdminScopes = field(default_factory=list)
    networks: Networks = field(default_factory=list)
    origins: Origins = field(default_factory=list)


class CreateProjectKeyRequest(Body, frozen=True, kw_only=True):
    name: Name
    expires_in_seconds: Seconds | None = None
    scopes: Scopes = field(default_factory=list)
    models: Models = field(default_factory=list)
    networks: Networks = field(default_factory=list)
    origins: Origins = field(default_factory=list)
    user_id: Id | None = None
    """The member of the project that the key belongs to."""


class CreateServiceAccountKeyRequest(Body, frozen=True, kw_only=True):
    name: Name | None = None
    expires_in_seconds: Seconds | None = None
    scopes: Scopes = field(default_factory=list)
    models: Models = field(default_factory=list)
    networks: Networks = field(default_factory=list)
    origins: Origins = field(default_factory=list)


class UpdateAdminKeyRequest(Body, frozen=True, kw_only=True):
    name: Name | UnsetType = UNSET
    expires_in_seconds: Seconds | UnsetType | None = UNSET
    """Seconds from now; null for no expiry."""
    scopes: AdminScopes | UnsetType = UNSET
    networks: Networks | UnsetType = UNSET
    origins: Origins | UnsetType = UNSET


class UpdateProjectKeyRequest(UpdateAdminKeyRequest, frozen=True, kw_only=True):
    scopes: Scopes | UnsetType = UNSET
    models: Models | UnsetType = UNSET


class RotateKeyRequest(Body, frozen=True, kw_only=True):
    grace_seconds: Annotated[int, Meta(ge=0, le=30 * 86_400)] = 86_400
    """Seconds that the old key keeps working."""


# Users ----------------------------------------------------------------------------------------------------


class InvitedProject(Body, frozen=True, kw_only=True):
    id: Id
    role: ProjectRole


class CreateInviteRequest(Body, frozen=True, kw_only=True):
    email: Email
    role: Annotated[str, _ROLE]
    projects: Annotated[list[InvitedProject], _PROJECTS] | None = None
    """None: the default project, as a member."""
    expires_in_seconds: Annotated[int, Meta(ge=60, le=30 * 86_400)] = 7 * 86_400


class AcceptInviteRequest(Body, frozen=True, kw_only=True):
    token: Annotated[str, Meta(min_length=1, max_length=200)]
    password: Annotated[str, Meta(min_length=10, max_length=1024)]
    name: Name | None = None


class UpdateUserRequest(Body, frozen=True, kw_only=True):
    name: Name | None = None
    role: Annotated[str, _ROLE] | None = None
    role_id: Annotated[str, _ROLE_ID] | None = None
    """The same, by its id."""
    enabled: bool | None = None
    """Whether the user can sign in and use their keys, as `user.enabled` of the object. Must be the only
    field.
    """


class CreateScimTokenRequest(Body, frozen=True, kw_only=True):
    name: Name


_LINE = {"pattern": f"^{PRINTABLE}$", "not": {"pattern": "^ *$"}}
_Attribute = Annotated[str, Meta(min_length=1, max_length=254, extra_json_schema=_LINE)]
_EntityId = Annotated[str, Meta(min_length=1, max_length=1024, extra_json_schema=_LINE)]
_SsoUrl = Annotated[str, Meta(min_length=1, max_length=2000, extra_json_schema={"format": "uri"})]
_Certificate = Annotated[str, Meta(min_length=1, max_length=16_000)]


class CreateGroupRequest(Body, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=254, extra_json_schema=_LINE)]


class SetSamlConnectionRequest(Body, frozen=True, kw_only=True):
    metadata: Annotated[str, Meta(min_length=1, max_length=262_144)] | UnsetType = UNSET
    """The identity provider's metadata, in XML: in place of the next three fields."""
    entity_id: _EntityId | UnsetType = UNSET
    sso_url: _SsoUrl | UnsetType = UNSET
    """Where it signs people in, with the HTTP-Redirect binding."""
    certificates: Annotated[list[_Certificate], Meta(min_length=1, max_length=2)] | UnsetType = UNSET
    """Its signing certificates, in PEM format: the one in use and the next."""
    email_attribute: _Attribute | UnsetType | None = UNSET
    """Null: one of the usual names, else the NameID."""
    groups_attribute: _Attribute | UnsetType | None = UNSET
    """Null: assertions say nothing of groups."""
    enabled: bool | UnsetType = UNSET
    allows_idp_initiated: bool | UnsetType = UNSET
    creates_members: bool | UnsetType = UNSET


class CreateSigningKeyRequest(Body, frozen=True, kw_only=True):
    name: Name
    public_key: Annotated[str, Meta(min_length=1, max_length=4096)]
    """In PEM, on the curve P-256, P-384 or P-521."""


class AdapterSigningRequest(Body, frozen=True, kw_only=True):
    signed_adapters_only: bool


class AssignRoleRequest(Body, frozen=True, kw_only=True):
    role_id: Annotated[str, _ROLE_ID]


# Projects -------------------------------------------------------------------------------------------------


class CreateProjectRequest(Body, frozen=True, kw_only=True):
    name: Name


class UpdateProjectRequest(Body, frozen=True, kw_only=True):
    name: Name


class AddProjectUserRequest(Body, frozen=True, kw_only=True):
    role: ProjectRole
    user_id: Id | None = None
    email: Email | None = None


class UpdateProjectUserRequest(Body, frozen=True, kw_only=True):
    role: ProjectRole


class CreateServiceAccountRequest(Body, frozen=True, kw_only=True):
    name: Name
    create_service_account_only: bool | None = None
    expires_in_seconds: Seconds | None = None
    """Seconds until its first key expires."""


class UpdateServiceAccountRequest(Body, frozen=True, kw_only=True):
    name: Name | None = None
    role: ProjectRole | None = None


class ModelPermissionsRequest(Body, frozen=True, kw_only=True):
    mode: Literal["allow_list", "deny_list"]
    model_ids: Annotated[Models, Meta(min_length=1)]


class ServiceTierSettingsRequest(Body, frozen=True, kw_only=True):
    default: Literal["standard", "fast"] | None = None
    enabled_tiers: Literal["all"] | list[Literal["flex", "fast"]] | None = None


# Limits ---------------------------------------------------------------------------------------------------


class RateLimitRequest(Body, frozen=True, kw_only=True):
    max_requests_per_1_minute: _Rate | None = None
    max_tokens_per_1_minute: _Rate | None = None
    max_requests_per_1_day: Amount | None = None


class SetLimitRequest(Body, frozen=True, kw_only=True):
    """A limit of the given project or key, else of the organization as a whole."""

    metric: Annotated[str, Meta(extra_json_schema={"enum": [one for one in Metric if one.kind != "ever"]})]
    amount: Amount
    model: Annotated[str, Meta(max_length=200, extra_json_schema={"pattern": rf"^({COVERED_MODEL})?$"})] = ""
    """Empty: all models together. `base`, `base:*`, `base:adapter`, `base:adapter@version`."""
    project_id: Id | None = None
    api_key_id: Id | None = None


class SpendLimitRequest(Body, frozen=True, kw_only=True):
    currency: Literal["USD"]
    interval: Literal["month"]
    threshold_amount: Annotated[int, Meta(ge=0, le=MAX_AMOUNT // MICRO_USD_PER_CENT)]
    """In cents."""


class DataRetentionRequest(Body, frozen=True, kw_only=True):
    """`POST /v1/organization/data_retention`."""

    retention_type: Literal["zero_data_retention", "modified_abuse_monitoring"]


class UpdateRetentionRequest(Body, frozen=True, kw_only=True):
    """`POST /v1/organization/retention/{data_class}`."""

    days: Annotated[int, Meta(ge=1, le=LONGEST_DAYS)] | None
    """Null: the default."""
    confirm_deletions: bool = False
    """Whether what a shorter period deletes now may be deleted."""


class PlaceLegalHoldRequest(Body, frozen=True, kw_only=True):
    """`POST /v1/organization/legal_holds`: a class, or an object."""

    reason: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=500,
            extra_json_schema={"pattern": f"^{PRINTABLE}$", "not": {"pattern": "^ *$"}},
        ),
    ]
    data_class: DataClass | None = None
    object_id: Id | None = None


BODIES = (
    DataRetentionRequest,
    UpdateRetentionRequest,
    PlaceLegalHoldRequest,
    CreateAdminKeyRequest,
    UpdateAdminKeyRequest,
    CreateProjectKeyRequest,
    UpdateProjectKeyRequest,
    CreateServiceAccountKeyRequest,
    RotateKeyRequest,
    CreateInviteRequest,
    AcceptInviteRequest,
    UpdateUserRequest,
    CreateScimTokenRequest,
    CreateGroupRequest,
    SetSamlConnectionRequest,
    CreateSigningKeyRequest,
    AdapterSigningRequest,
    AssignRoleRequest,
    CreateProjectRequest,
    UpdateProjectRequest,
    AddProjectUserRequest,
    UpdateProjectUserRequest,
    CreateServiceAccountRequest,
    UpdateServiceAccountRequest,
    ModelPermissionsRequest,
    ServiceTierSettingsRequest,
    RateLimitRequest,
    SetLimitRequest,
    SpendLimitRequest,
)
