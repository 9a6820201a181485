from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tenants.context import TenantContext
from tenants.limits.kinds import Limit, Metric
from tenants.quotas import Quotas, UsageReader
from tenants.quotas.scripts import Timing
from tests.support.waiting import eventually

TENANT = "tnt_1"
QUICK = Timing(lifetime=3.0, renew_every=0.25, silence=2.0, grace=0.5, away_after=0.5)
"""For tests of what expires."""

_serial = itertools.count()


def limit(metric: Metric, amount: int, *, scope: str = "tenant", of: str = TENANT, model: str = "") -> Limit:
    return Limit(scope, of, model, metric, amount)  # type: ignore[arg-type]


def caller(*limits: Limit, tenant: str = TENANT, key: str | None = None) -> TenantContext:
    """A key of its own for every call: plans are kept by key."""
    return TenantContext(tenant, tenant, key or f"key_{next(_serial)}", "inference", limits=limits)


@asynccontextmanager
async def opened(
    redis_url: str,
    name: str = "api-0",
    *,
    read_usage: UsageReader | None = None,
    timing: Timing | None = None,
) -> AsyncIterator[Quotas]:
    """A process's quotas, connected."""
    quotas = Quotas(redis_url, name, read_usage=read_usage, timing=timing)
    await quotas.start()
    try:
        await eventually(lambda: not quotas.away)
        yield quotas
    finally:
        await quotas.close()


@pytest.fixture
async def quotas(redis_url: str) -> AsyncIterator[Quotas]:
    async with opened(redis_url) as made:
        yield made


async def counted(quotas: Quotas, *limits: Limit) -> list[tuple[int | None, int]]:
    """(used, held) of each."""
    return [(state.used, state.held) for state in await quotas.state(TENANT, limits)]
