"""Sets a tenant's prepaid balance as a limit: the amount is what was paid in, and usage counts towards it."""

from __future__ import annotations

from functools import partial

import redis.asyncio

from db.session import WriteSession
from tenants.limits.kinds import MAX_AMOUNT, Limit, Metric
from tenants.limits.repository import LimitRepository
from tenants.quotas.plan import bucket_key
from tenants.repository import KeyRepository
from tenants.resolver import publish_key_changes


async def set_balance(
    session: WriteSession, redis_client: redis.asyncio.Redis | None, tenant_id: str, paid_in: int | None
) -> None:
    """Limits a tenant's spend to `paid_in` micro-USD from the commit on; None if it pays by invoice. Reaches
    every process within a second.

    Call it in the transaction that changes what was paid in. Without a Redis client, processes see the change
    when their cached keys expire.
    """
    repository = LimitRepository(session, tenant_id)
    limit = balance_limit(tenant_id, paid_in or 0)
    if paid_in is None:
        before = await repository.delete("tenant", tenant_id, "", Metric.PREPAID_BALANCE)
        changed = before is not None
    else:
        before = await repository.set(limit)
        changed = before != limit.amount
        if before is None and redis_client is not None:
            # A count from an earlier prepaid period misses what was used since: without it, the first
            # request looks the usage up in the ledger.
            session.after_commit(partial(_forget, redis_client, limit, tenant_id))
    if changed and redis_client is not None:
        digests = await KeyRepository(session, tenant_id).digests()
        session.after_commit(partial(publish_key_changes, redis_client, digests))


def balance_limit(tenant_id: str, paid_in: int) -> Limit:
    """Returns the limit; zero if refunds exceed what was paid in."""
    return Limit("tenant", tenant_id, "", Metric.PREPAID_BALANCE, min(max(0, paid_in), MAX_AMOUNT))


async def _forget(redis_client: redis.asyncio.Redis, limit: Limit, tenant_id: str) -> None:
    await redis_client.delete(bucket_key(tenant_id, limit))
