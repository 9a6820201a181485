"""Requests that wait, without an engine around them."""

from __future__ import annotations

from engine.kv_cache import BlockPool, BlockTable, prefix_root
from engine.protocol import AdapterRef, PriorityClass
from engine.request import Request, RequestGroup
from tests.engine.plain.harness import submission


class Arrivals:
    def __init__(self) -> None:
        self.pool = BlockPool(2)
        self.count = 0

    def request(
        self,
        tenant: str = "acme",
        priority: PriorityClass = PriorityClass.DEFAULT,
        ref: AdapterRef | None = None,
        prompt_len: int = 1,
    ) -> Request:
        self.count += 1
        prompt_ids = [1] * prompt_len
        submit = submission(f"r{self.count}", prompt_ids, tenant=tenant, priority=priority, adapter=ref)
        group = RequestGroup(submit, self.count, prompt_len + 1, 0)
        return Request(group, 0, BlockTable(self.pool, prefix_root(tenant, None)), {}, None)


def everyone(ref: AdapterRef) -> bool:
    return True
