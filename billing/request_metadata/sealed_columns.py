"""Names the sealed column of the metadata of requests, for `tenants.rotation`."""

from __future__ import annotations

from billing.request_metadata.content import PURPOSE
from billing.request_metadata.models import StoredMetadata
from tenants.rotation.repository import SealedColumn

SEALED = (
    SealedColumn(
        "metadata of requests",
        StoredMetadata,
        "sealed",
        PURPOSE,
        lambda row: f"{row['tenant_id']} {row['request_id']}",
    ),
)
