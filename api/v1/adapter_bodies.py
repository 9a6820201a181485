"""What the routes of adapters take and show, as JSON.

Owns field names, their order and their limits. Refuses to know what is done with them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from adapters.models import Adapter, AdapterEvent, AdapterVersion, VersionState
from adapters.names import MAX_DESCRIPTION, ModelName
from adapters.submission import Calibration, Submission
from api.json_bodies import decode, unix

Id = Annotated[str, Meta(pattern=r"^[!-~]{1,100}$")]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9._-]{1,64}$")]
Description = Annotated[str, Meta(max_length=MAX_DESCRIPTION, pattern=r"^[^\x00]*$")]


class CalibrationFields(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    file_id: Id | None = None
    """Samples of the tenant's own, uploaded with the purpose `calibration`."""
    dtype: Literal["auto", "bfloat16", "float8_e4m3"] = "auto"


class VersionFields(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    file_ids: Annotated[list[Id], Meta(min_length=2, max_length=2)] | None = None
    upload_ids: Annotated[list[Id], Meta(min_length=2, max_length=2)] | None = None
    calibration: CalibrationFields | None = None
    activate: bool = True

    def submission(self) -> Submission:
        asked = self.calibration or CalibrationFields()
        return Submission(
            file_ids=self.file_ids,
            upload_ids=self.upload_ids,
            activate=self.activate,
            calibration=Calibration(asked.file_id, asked.dtype),
        )


class CreateVersionRequest(VersionFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The next version of an adapter."""


class CreateAdapterRequest(VersionFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An adapter and its first version."""

    name: Name
    base_model: Annotated[str, Meta(min_length=1, max_length=64)]
    description: Description | None = None


class UpdateAdapterRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is left out stays as it is."""

    name: Name | None = None
    description: Description | None = None
    disabled: bool | None = None


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


def adapter_object(adapter: Adapter, version: AdapterVersion | None) -> dict[str, Any]:
    """`version`: the one that stands for it, whose state is the adapter's while that is enabled."""
    state = None if version is None else version.state
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


def version_object(adapter: Adapter, version: AdapterVersion) -> dict[str, Any]:
    failed = version.state == VersionState.FAILED
    return {
        "id": f"{adapter.id}@{version.version}",
        "object": "adapter.version",
        "created_at": unix(version.created_at),
        "ready_at": unix(version.ready_at),
        "adapter_id": adapter.id,
        "version": version.version,
        "model": str(ModelName(adapter.base, adapter.name, version.version)),
        "state": version.state,
        "active": adapter.active_version == version.version,
        "activate": version.activate,
        "rank": version.rank,
        "dtype": version.dtype,
        "digest": version.digest,
        "bytes": version.size,
        "files": [
            {"filename": name, "bytes": source["size"], "sha256": source["sha256"]}
            for name, source in sorted(version.sources.items())
        ],
        "inspection": version.inspection,
        "calibration": version.calibration,
        "error": {"code": "adapter_invalid", "message": version.error, "param": version.error_field}
        if failed
        else None,
        "override_reason": version.override_reason,
        "created_by": version.created_by,
    }


def event_object(event: AdapterEvent) -> dict[str, Any]:
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
