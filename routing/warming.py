"""Lets a replica load the adapters that it will be a home of before it takes requests."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from engine.client import EngineClient
from engine.protocol import AdapterRef
from routing.placement import Placement
from routing.reports import ResidentAdapters

MAX_KNOWN = 4096
MAX_LOADED = 64
"""Adapters that are loaded before a replica takes requests: those used last."""
WARM_SECONDS = 10.0
"""After which a replica takes requests, whatever it has loaded."""
LOOK_INTERVAL = 0.05


class KnownAdapters:
    """The adapters that requests used last."""

    def __init__(self, max_known: int = MAX_KNOWN) -> None:
        self._max_known = max_known
        # By digest, the longest unused first.
        self._known: OrderedDict[str, AdapterRef] = OrderedDict()

    def used(self, adapter: AdapterRef) -> None:
        self._known[adapter.digest] = adapter
        self._known.move_to_end(adapter.digest)
        if len(self._known) > self._max_known:
            self._known.popitem(last=False)

    def moving_to(self, replica: str, placement: Placement) -> list[AdapterRef]:
        """Returns the adapters that a replica becomes a home of when it joins, those used last first."""
        found: list[AdapterRef] = []
        for digest, adapter in reversed(self._known.items()):
            if placement.would_hold(replica, digest):
                found.append(adapter)
                if len(found) == MAX_LOADED:
                    break
        return found


async def warm(client: EngineClient, adapters: Sequence[AdapterRef], within: float = WARM_SECONDS) -> None:
    """Has an engine load adapters, and waits until its heartbeat names those that fit and none is loading; at
    most `within` seconds. An engine that does not report its adapters is not waited for.
    """
    if not adapters:
        return
    for adapter in adapters:
        client.prefetch(adapter)
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while client.ready and loop.time() < end:
        stats, info = client.stats, client.info
        if stats is not None and info is not None and stats.incarnation == info.incarnation:
            if stats.resident is None:
                return
            resident = ResidentAdapters(stats.resident)
            num_held = sum(adapter.digest in resident for adapter in adapters)
            if num_held >= min(len(adapters), stats.slots_total) and not stats.slots_loading:
                return
        await asyncio.sleep(LOOK_INTERVAL)
