"""The prepaid balance as a limit: what was paid in is its amount, what was used is counted like any budget.

Owns the limit's row and telling everybody of it. Refuses to know who pays what, and what anything costs.
"""

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
    """Have a tenant's requests count to what it paid in, in micro-USD, from the commit on; None: it pays
    afterwards. Every process hears of it within a second.

    In the transaction that changes what was paid in: what is read of it there is what holds. Without a
    client, processes hear of it when their caches are old.
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
            # What was counted when it was prepaid before is not all that it used since: the first request
            # has it looked up in the ledger.
            session.after_commit(partial(_forget, redis_client, limit, tenant_id))
    if changed and redis_client is not None:
        digests = await KeyRepository(session, tenant_id).digests()
        session.after_commit(partial(publish_key_changes, redis_client, digests))


def balance_limit(tenant_id: str, paid_in: int) -> Limit:
    """More was taken back than paid in: then there is nothing."""
    return Limit("tenant", tenant_id, "", Metric.PREPAID_BALANCE, min(max(0, paid_in), MAX_AMOUNT))


async def _forget(redis_client: redis.asyncio.Redis, limit: Limit, tenant_id: str) -> None:
    await redis_client.delete(bucket_key(tenant_id, limit))
