"""Defines the JSON request bodies and response objects of `/v1/adapters`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from adapters.imports.sources import (
    BUCKET_URL,
    DEFAULT_REGION,
    DEFAULT_REVISION,
    MAX_ENDPOINT,
    REGION,
    REPOSITORY,
    REVISION,
    SECRET,
    BucketSource,
    HubSource,
)
from adapters.model_names import MAX_DESCRIPTION, ModelName
from adapters.models import Adapter, AdapterEvent, AdapterVersion, VersionState
from adapters.submission import Calibration, Submission
from api.body_fields import Body, Id
from api.json_bodies import decode, unix

Name = Annotated[str, Meta(pattern=r"^[a-z0-9._-]{1,64}$")]
Description = Annotated[str, Meta(max_length=MAX_DESCRIPTION, pattern=r"^[^\x00]*$")]


class CalibrationFields(Body, frozen=True, kw_only=True):
    file_id: Id | None = None
    """A file of the tenant's own samples, uploaded with the purpose `calibration`."""
    dtype: Literal["auto", "bfloat16", "float8_e4m3"] = "auto"


class HubSourceFields(Body, frozen=True, kw_only=True, tag="hub", tag_field="type"):
    """A repository of a model hub."""

    repository: Annotated[str, Meta(pattern=f"^{REPOSITORY}$")]
    """`owner/name`."""
    revision: Annotated[str, Meta(pattern=f"^{REVISION}$")] = DEFAULT_REVISION
    """A branch, a tag or a commit. It is resolved to a commit when the import starts."""
    endpoint: Annotated[str, Meta(min_length=1, max_length=MAX_ENDPOINT)] | None = None
    """The hub's URL, one that the operator allows; null: the operator's default."""
    token: Annotated[str, Meta(pattern=f"^{SECRET}$")] | None = None
    """For a private or gated repository. It is stored encrypted and erased when the import ends."""

    def source(self) -> HubSource:
        """Raises InvalidAdapter."""
        return HubSource(self.repository, self.revision, self.endpoint, self.token)


class BucketSourceFields(Body, frozen=True, kw_only=True, tag="s3", tag_field="type"):
    """Objects of an S3 bucket. Without a key the bucket must be public."""

    url: Annotated[str, Meta(pattern=f"^{BUCKET_URL}$")]
    """`s3://bucket/prefix`."""
    region: Annotated[str, Meta(pattern=f"^{REGION}$")] = DEFAULT_REGION
    endpoint: Annotated[str, Meta(min_length=1, max_length=MAX_ENDPOINT)] | None = None
    """The URL of an S3-compatible server, one that the operator allows; null: Amazon's."""
    access_key_id: Annotated[str, Meta(pattern=f"^{SECRET}$")] | None = None
    """Together with its secret. Keys are stored encrypted and erased when the import ends."""
    secret_access_key: Annotated[str, Meta(pattern=f"^{SECRET}$")] | None = None
    session_token: Annotated[str, Meta(pattern=f"^{SECRET}$")] | None = None
    """Of temporary keys."""

    def source(self) -> BucketSource:
        """Raises InvalidAdapter."""
        return BucketSource(
            self.url,
            self.region,
            self.endpoint,
            self.access_key_id,
            self.secret_access_key,
            self.session_token,
        )


class VersionFields(Body, frozen=True, kw_only=True):
    file_ids: Annotated[list[Id], Meta(min_length=2, max_length=3)] | None = None
    """Weights and configuration, and the signature (`model.sig`) if there is one, in any order."""
    upload_ids: Annotated[list[Id], Meta(min_length=2, max_length=3)] | None = None
    """The same, of uploads that may be unfinished."""
    source: HubSourceFields | BucketSourceFields | None = None
    """Where the files are imported from, in place of file_ids and upload_ids."""
    calibration: CalibrationFields | None = None
    activate: bool = True

    def submission(self) -> Submission:
        asked = self.calibration or CalibrationFields()
        return Submission(
            file_ids=self.file_ids,
            upload_ids=self.upload_ids,
            source=None if self.source is None else self.source.source(),
            activate=self.activate,
            calibration=Calibration(asked.file_id, asked.dtype),
        )


class CreateVersionRequest(VersionFields, frozen=True, kw_only=True):
    """The next version of an adapter."""


class CreateAdapterRequest(VersionFields, frozen=True, kw_only=True):
    """An adapter and its first version."""

    name: Name
    base_model: Annotated[str, Meta(min_length=1, max_length=64)]
    description: Description | None = None


class UpdateAdapterRequest(Body, frozen=True, kw_only=True):
    """Changes to an adapter; fields that are left out keep their values."""

    name: Name | None = None
    description: Description | None = None
    disabled: bool | None = None


class SourceFile(TypedDict):
    """A file that a version is made from."""

    filename: str
    bytes: int
    sha256: str


class VersionSource(TypedDict):
    """Where a version's files were imported from."""

    type: Literal["hub", "s3"]
    endpoint: str | None
    """The URL of the hub, or of the S3 server; null for Amazon's."""
    repository: str | None
    """Of a hub."""
    revision: str | None
    """Of a hub: as it was given."""
    commit: str | None
    """Of a hub: the commit that the revision was when the import started."""
    url: str | None
    """Of a bucket: `s3://bucket/prefix`."""
    region: str | None
    """Of a bucket."""


class VersionError(TypedDict):
    """Why a version failed."""

    code: Literal["adapter_invalid"]
    message: str | None
    param: str | None
    """The tensor, or the field of adapter_config.json, at fault."""


class UploaderKey(TypedDict):
    """One of the organization's signing keys."""

    id: str
    name: str
    key_id: str


class VersionSignature(TypedDict):
    """The signatures of a version."""

    status: Literal["unsigned", "signed", "refused"]
    """`signed`: by the platform, over all files. `refused`: what is stored is not what was signed, and
    requests for the version are refused."""
    signed_at: int | None
    """Unix seconds."""
    problem: str | None
    """What is wrong, of a version that is refused."""
    uploader_key: UploaderKey | None
    """The organization's key that the upload was signed with; null for one without such a signature."""


class VersionObject(TypedDict):
    """A version of an adapter. Versions never change."""

    id: str
    object: Literal["adapter.version"]
    created_at: int
    """Unix seconds."""
    ready_at: int | None
    """Unix seconds; null until the version can serve."""
    adapter_id: str
    version: int
    model: str
    """The name that requests use for exactly this version."""
    state: VersionState
    active: bool
    """Whether the adapter's name serves this version."""
    activate: bool
    """Whether the version becomes active as soon as it is ready, unless it measured worse than the active
    one.
    """
    rank: int | None
    """The rank of the adapter; null until it is inspected."""
    dtype: str | None
    """The number format that the version is served in; null until it is ready."""
    digest: str | None
    """The SHA-256 of the packed weights; null until the version is ready."""
    bytes: int | None
    """The size of the packed weights; null until the version is ready."""
    source: VersionSource | None
    """Where the files were imported from; null for uploads."""
    files: list[SourceFile]
    inspection: dict[str, Any] | None
    """What was found in the files."""
    calibration: dict[str, Any] | None
    """What was measured before the version could serve."""
    error: VersionError | None
    signature: VersionSignature
    override_reason: str | None
    """Why an operator let the version serve although it failed a check."""
    created_by: str | None


class AdapterObject(TypedDict):
    """A LoRA adapter of the base model."""

    id: str
    object: Literal["adapter"]
    created_at: int
    """Unix seconds."""
    name: str
    base_model: str
    model: str
    """The name that requests use for the active version."""
    description: str | None
    state: VersionState | None
    """The state of the version that stands for the adapter, or `disabled`."""
    disabled: bool
    active_version: int | None
    """The version that the adapter's name serves."""
    previous_version: int | None
    """The version that a rollback makes active."""
    version: VersionObject | None
    """The active version, or else the newest one."""
    created_by: str | None


class SubmittedAdapterObject(AdapterObject):
    """A new adapter."""

    calibration_job: str | None
    """The id of the job that inspects and calibrates the first version."""


class SubmittedVersionObject(VersionObject):
    """A new version, or the one that was made from the same files before."""

    created: bool
    """False when the adapter has a version of the same files already."""
    calibration_job: str | None
    """The id of the job that inspects and calibrates the version."""


class AdapterEventObject(TypedDict):
    """Something that happened to an adapter."""

    id: str
    object: Literal["adapter.event"]
    created_at: int
    """Unix seconds."""
    type: str
    level: str
    """`info`, `warning` or `error`."""
    message: str
    data: dict[str, Any]
    adapter_id: str
    version: int | None
    job_id: str | None


BODIES = (CreateAdapterRequest, CreateVersionRequest, UpdateAdapterRequest)

_create = msgspec.json.Decoder(CreateAdapterRequest)
_add = msgspec.json.Decoder(CreateVersionRequest)
_update = msgspec.json.Decoder(UpdateAdapterRequest)


def decode_create(body: bytes) -> CreateAdapterRequest:
    """Raises InvalidValue, UnsupportedParameter."""
    return decode(_create, body)


def decode_version(body: bytes) -> CreateVersionRequest:
    """Raises InvalidValue, UnsupportedParameter."""
    return decode(_add, body)


def decode_update(body: bytes) -> UpdateAdapterRequest:
    """Raises InvalidValue, UnsupportedParameter."""
    return decode(_update, body)


def adapter_object(adapter: Adapter, version: AdapterVersion | None) -> AdapterObject:
    """Returns an adapter's object. `version`: the version whose state is the adapter's while it is
    enabled.
    """
    state = None if version is None else VersionState(version.state)
    return {
        "id": adapter.id,
        "object": "adapter",
        "created_at": unix(adapter.created_at),
        "name": adapter.name,
        "base_model": adapter.base,
        "model": str(ModelName(adapter.base, adapter.name)),
        "description": adapter.description,
        "state": VersionState.DISABLED if adapter.disabled_at is not None else state,
        "disabled": adapter.disabled_at is not None,
        "active_version": adapter.active_version,
        "previous_version": adapter.previous_version,
        "version": None if version is None else version_object(adapter, version),
        "created_by": adapter.created_by,
    }


def version_object(adapter: Adapter, version: AdapterVersion) -> VersionObject:
    failed = version.state == VersionState.FAILED
    return {
        "id": f"{adapter.id}@{version.version}",
        "object": "adapter.version",
        "created_at": unix(version.created_at),
        "ready_at": unix(version.ready_at),
        "adapter_id": adapter.id,
        "version": version.version,
        "model": str(ModelName(adapter.base, adapter.name, version.version)),
        "state": VersionState(version.state),
        "active": adapter.active_version == version.version,
        "activate": version.activate,
        "rank": version.rank,
        "dtype": version.dtype,
        "digest": version.digest,
        "bytes": version.size,
        "source": _source(version),
        "files": [
            {"filename": name, "bytes": source["size"], "sha256": source["sha256"]}
            for name, source in sorted(version.sources.items())
        ],
        "inspection": version.inspection,
        "calibration": version.calibration,
        "error": {"code": "adapter_invalid", "message": version.error, "param": version.error_field}
        if failed
        else None,
        "signature": _signature(version),
        "override_reason": version.override_reason,
        "created_by": version.created_by,
    }


def _signature(version: AdapterVersion) -> VersionSignature:
    key = version.uploader_key
    status: Literal["unsigned", "signed"] = "unsigned" if version.signed_at is None else "signed"
    return {
        "status": status if version.signature_problem is None else "refused",
        "signed_at": unix(version.signed_at),
        "problem": version.signature_problem,
        "uploader_key": None
        if key is None
        else {"id": key["id"], "name": key["name"], "key_id": key["key_id"]},
    }


def _source(version: AdapterVersion) -> VersionSource | None:
    origin = version.origin
    if origin is None:
        return None
    return {
        "type": origin["type"],
        "endpoint": origin.get("endpoint"),
        "repository": origin.get("repository"),
        "revision": origin.get("revision"),
        "commit": origin.get("commit"),
        "url": origin.get("url"),
        "region": origin.get("region"),
    }


def event_object(event: AdapterEvent) -> AdapterEventObject:
    return {
        "id": event.id,
        "object": "adapter.event",
        "created_at": unix(event.created_at),
        "type": event.type,
        "level": event.level,
        "message": event.message,
        "data": event.data,
        "adapter_id": event.adapter_id,
        "version": event.version,
        "job_id": event.job_id,
    }
