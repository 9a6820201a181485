"""Builds the object store keys of an adapter's files, below `tenants/{tenant}/adapters/`."""

from __future__ import annotations

from engine.signing.statement import SIGNATURE_FILE

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
SOURCE_FILES = (WEIGHTS_FILE, CONFIG_FILE)
GIVEN_FILES = (*SOURCE_FILES, SIGNATURE_FILE)
"""Files that an upload or an import may have: the last one is optional."""


def adapter_prefix(tenant_id: str, adapter_id: str) -> str:
    """Returns the prefix of everything that is stored for an adapter."""
    return f"tenants/{tenant_id}/adapters/{adapter_id}/"


def version_prefix(tenant_id: str, adapter_id: str, version: int) -> str:
    """Returns the prefix of a version's packed weights."""
    return f"{adapter_prefix(tenant_id, adapter_id)}{version}/"


def source_key(tenant_id: str, adapter_id: str, source_id: str, filename: str) -> str:
    """Returns the key of a file that a version is made from.

    It does not contain the version's number: that is only known when the transaction commits, and of two
    versions created at once neither may overwrite the other's files.
    """
    return f"{adapter_prefix(tenant_id, adapter_id)}sources/{source_id}/{filename}"


def artifact_key(tenant_id: str, adapter_id: str, version: int, dtype: str) -> str:
    """Returns the key of a version's packed weights."""
    return f"{version_prefix(tenant_id, adapter_id, version)}{dtype}.rsa"


def report_prefix(tenant_id: str, adapter_id: str, job_id: str) -> str:
    """Returns the prefix of a job's report: a version may be calibrated more than once."""
    return f"{adapter_prefix(tenant_id, adapter_id)}jobs/{job_id}/"


def checkpoint_prefix(tenant_id: str, adapter_id: str, job_id: str) -> str:
    """Returns the prefix of the checkpoint of a running calibration."""
    return f"{report_prefix(tenant_id, adapter_id, job_id)}checkpoint/"


def adapter_of(key: str) -> str:
    """Returns the id of the adapter that an object belongs to."""
    return key.split("/")[3]


def is_source(key: str) -> bool:
    """Returns whether the key is that of a file that a version is made from."""
    return key.split("/")[4:5] == ["sources"]
