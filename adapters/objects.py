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
