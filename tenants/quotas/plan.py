"""Compiles a caller's limits for one model into the buckets that a request takes from, packed for the
scripts.

Compiled once per key and model, and cached. Lua scripts in Redis count the buckets, and `local_share` while
Redis is unreachable.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tenants.context import TenantContext
from tenants.limits.kinds import BUDGETS, Kind, Limit, Measure
from tenants.quotas.scripts import Scripts, reserve_tail, tag_of

MAX_PLANS = 50_000
CONTRACT = 5
KINDS: dict[Kind, int] = {"rate": 1, "held": 2, "day": 3, "month": 4, "ever": 6}
MEASURES: dict[Measure, int] = {
    "requests": 1,
    "input_tokens": 2,
    "output_tokens": 3,
    "tokens": 4,
    "spend": 5,
}


@dataclass(frozen=True, slots=True)
class Contract:
    """A contracted rate. It refuses nothing: a reservation says whether the request is within it."""

    name: str
    """What the contract is for, such as a service tier: one bucket per tenant and name."""
    tokens_per_minute: int | None
    """None: no bound."""


@dataclass(frozen=True, slots=True)
class Bucket:
    name: str
    kind: int
    measure: int
    amount: int
    limit: Limit | None
    """None for a contract."""


@dataclass(frozen=True, slots=True, eq=False)
class CompiledPlan:
    """All buckets of one caller for one model."""

    tenant_id: str
    tag: bytes
    buckets: tuple[Bucket, ...]
    packed: bytes
    """The buckets in the scripts' format."""
    head: bytes
    tail: bytes
    """Constant parts of the reserve command."""
    has_windows: bool
    """Whether it contains budgets, which cannot be enforced without Redis."""
    rate_names: tuple[str, ...]
    """Names of the buckets of rates and contracts, in the order in which `reserve` returns their levels."""


def compile_plan(
    scripts: Scripts, tenant_id: str, limits: Sequence[Limit], contract: Contract | None = None
) -> CompiledPlan | None:
    """Returns the compiled plan, or None if nothing is counted."""
    buckets = [
        Bucket(_name(limit), KINDS[limit.metric.kind], MEASURES[limit.metric.measure], limit.amount, limit)
        for limit in limits
        if limit.metric.kind != "stored"
    ]
    if contract is not None and contract.tokens_per_minute is not None:
        name = f"contract:{contract.name}"
        buckets.append(Bucket(name, CONTRACT, MEASURES["tokens"], contract.tokens_per_minute, None))
    if not buckets:
        return None
    flat: list[str | int] = []
    for bucket in buckets:
        flat += (bucket.name, bucket.kind, bucket.measure, bucket.amount)
    packed, tag = msgspec.msgpack.encode(flat), tag_of(tenant_id)
    return CompiledPlan(
        tenant_id,
        tag,
        tuple(buckets),
        packed,
        scripts.reserve_head(tag),
        reserve_tail(tag, packed),
        any(limit.metric.kind in BUDGETS for limit in limits),
        tuple(bucket.name for bucket in buckets if bucket.kind in (KINDS["rate"], CONTRACT)),
    )


class Plans:
    """Caches compiled plans of recent callers."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._known: OrderedDict[
            tuple[str, str, str | None], tuple[tuple[Limit, ...], Contract | None, CompiledPlan | None]
        ] = OrderedDict()

    def of(self, caller: TenantContext, model: str, contract: Contract | None) -> CompiledPlan | None:
        if contract is None and not caller.limits:
            return None
        key = (caller.key_id, model, None if contract is None else contract.name)
        known = self._known.get(key)
        # A changed key gets a new context, and with it a new tuple of limits.
        if known is not None and known[0] is caller.limits and known[1] == contract:
            self._known.move_to_end(key)
            return known[2]
        limits = [limit for limit in caller.limits if limit.covers(model)]
        plan = compile_plan(self._scripts, caller.tenant_id, limits, contract)
        self._known[key] = caller.limits, contract, plan
        if len(self._known) > MAX_PLANS:
            self._known.popitem(last=False)
        return plan


def bucket_key(tenant_id: str, limit: Limit) -> bytes:
    """Returns the Redis key of a limit's count."""
    return tag_of(tenant_id) + _name(limit).encode()


def _name(limit: Limit) -> str:
    whose = "" if limit.scope == "tenant" else limit.counted_id
    return f"{limit.metric}:{whose}:{limit.model}"
