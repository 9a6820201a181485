"""What a caller's limits come to for one model: the buckets that a request takes from, ready to be sent.

Owns the names of buckets and the compiled form, made once per key and model and kept. Refuses to know how
buckets are counted: the scripts do, and `local` while they cannot be asked.
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
    """A rate that refuses nothing: whether a request stays within it is part of the answer."""

    name: str
    """Of what it is a contract on, as a class of service: one bucket per tenant and name."""
    tokens_per_minute: int | None
    """None: there is no bound to stay within."""


@dataclass(frozen=True, slots=True)
class Bucket:
    name: str
    kind: int
    measure: int
    amount: int
    limit: Limit | None
    """None: a contract's."""


@dataclass(frozen=True, slots=True, eq=False)
class CompiledPlan:
    """All buckets of one caller for one model."""

    tenant_id: str
    tag: bytes
    buckets: tuple[Bucket, ...]
    packed: bytes
    """As the scripts read it."""
    head: bytes
    tail: bytes
    """Of the command that reserves."""
    has_windows: bool
    """Whether budgets are among them, which cannot be judged without Redis."""
    rate_names: tuple[str, ...]
    """Buckets of rates and contracts, whose levels `reserve` answers in this order."""


def compile_plan(
    scripts: Scripts, tenant_id: str, limits: Sequence[Limit], contract: Contract | None = None
) -> CompiledPlan | None:
    """None when nothing is to be counted."""
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
    """Compiled plans of the callers seen lately."""

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
        # A context is replaced whole when anything of it changes.
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
    """Where a limit's count is in Redis."""
    return tag_of(tenant_id) + _name(limit).encode()


def _name(limit: Limit) -> str:
    whose = "" if limit.scope == "tenant" else limit.counted_id
    return f"{limit.metric}:{whose}:{limit.model}"
