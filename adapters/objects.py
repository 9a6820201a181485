"""Where an adapter's objects are in the store.

Owns the keys below `tenants/{tenant}/adapters/`. Knows neither rows nor the store.
"""

from __future__ import annotations

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
SOURCE_FILES = (WEIGHTS_FILE, CONFIG_FILE)


def adapter_prefix(tenant_id: str, adapter_id: str) -> str:
    """Of everything that is kept of one adapter."""
    return f"tenants/{tenant_id}/adapters/{adapter_id}/"


def version_prefix(tenant_id: str, adapter_id: str, version: int) -> str:
    """Of what one version consists of, but for what it was made from."""
    return f"{adapter_prefix(tenant_id, adapter_id)}{version}/"


def source_key(tenant_id: str, adapter_id: str, source_id: str, filename: str) -> str:
    """Of a file that a version is made from.

    Not by the version's number: that is only known when the transaction that makes it commits, and of two
    versions made at once neither may write over the other's files.
    """
    return f"{adapter_prefix(tenant_id, adapter_id)}sources/{source_id}/{filename}"


def artifact_key(tenant_id: str, adapter_id: str, version: int, dtype: str) -> str:
    """Of a version's packed weights."""
    return f"{version_prefix(tenant_id, adapter_id, version)}{dtype}.rsa"


def report_prefix(tenant_id: str, adapter_id: str, job_id: str) -> str:
    """Of the report of a job: a version may be calibrated more than once."""
    return f"{adapter_prefix(tenant_id, adapter_id)}jobs/{job_id}/"


def checkpoint_prefix(tenant_id: str, adapter_id: str, job_id: str) -> str:
    """Of what a calibration has finished while it runs."""
    return f"{report_prefix(tenant_id, adapter_id, job_id)}checkpoint/"


def adapter_of(key: str) -> str:
    """The id of the adapter whose object has that key."""
    return key.split("/")[3]


def is_source(key: str) -> bool:
    """Whether it is the key of a file that a version is made from."""
    return key.split("/")[4:5] == ["sources"]
