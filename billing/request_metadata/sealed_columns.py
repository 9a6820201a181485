"""Names the sealed column of the metadata of requests, for `tenants.rotation`; says what workers
have yet to store.
"""

from __future__ import annotations

from typing import Any

import msgspec
import redis.asyncio

from billing.request_metadata.content import PURPOSE
from billing.request_metadata.models import StoredMetadata
from billing.request_metadata.recorder import STREAM, MetadataEntry
from tenants.identities.sealing import label_of
from tenants.key_secrets import KeySecrets
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


async def is_stream_behind(redis_client: redis.asyncio.Redis, secrets: KeySecrets) -> bool:
    """Returns whether the oldest entry that no worker has stored yet is sealed under another secret than the
    current one. Raises RedisError.
    """
    oldest: Any = await redis_client.xrange(STREAM, count=1)
    if not oldest:
        return False
    entry = msgspec.msgpack.decode(oldest[0][1][b"row"], type=MetadataEntry)
    return not entry.sealed.startswith(label_of(secrets.current))
