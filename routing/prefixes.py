"""Remembers which replica last computed a prompt's prefix, or served a session.

A prompt is cut into pieces of 256 tokens. Each piece's key is a hash of everything up to its end, salted by
tenant and adapter as the engines' caches are: two prompts share a key only if they share what the cache
holds. A collision sends a request to a replica without its prefix, no more. Memory is bounded, and what was
not used for some minutes is forgotten, as the replicas' caches have probably evicted it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

PIECE_TOKENS = 256
MAX_PIECES = 64
"""Of a prompt; what comes after them does not count."""
MAX_KEYS = 131_072
FORGOTTEN_AFTER = 600.0
"""Seconds since a key was used last."""


def prefix_keys(tenant: str, adapter: str | None, prompt_ids: Sequence[int]) -> tuple[int, ...]:
    """Returns the keys of a prompt's prefixes, the shortest first; none for a prompt shorter than a piece."""
    key = hash((tenant, adapter))
    keys = []
    for begin in range(0, min(len(prompt_ids) // PIECE_TOKENS, MAX_PIECES) * PIECE_TOKENS, PIECE_TOKENS):
        key = hash((key, tuple(prompt_ids[begin : begin + PIECE_TOKENS])))
        keys.append(key)
    return tuple(keys)


def session_key(tenant: str, adapter: str | None, session: str) -> int:
    """Returns the key of a session, such as a client's `prompt_cache_key`."""
    return hash((tenant, adapter, session))


class PrefixMap:
    """Replicas by key, with the time of their last use."""

    def __init__(self, max_keys: int = MAX_KEYS, forgotten_after: float = FORGOTTEN_AFTER) -> None:
        self._max_keys = max_keys
        self._forgotten_after = forgotten_after
        # Replica and time of the last use, the longest ago first.
        self._known: OrderedDict[int, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, keys: Sequence[int], now: float) -> tuple[str, float, int] | None:
        """Returns the replica that computed the longest known prefix, when it did, and the prefix's length in
        pieces; None if none is known. `keys`: the shortest first.
        """
        for length in range(len(keys), 0, -1):
            known = self._known.get(keys[length - 1])
            if known is not None and now - known[1] <= self._forgotten_after:
                return *known, length
        return None

    def learn(self, keys: Sequence[int], replica: str, now: float) -> None:
        """Notes that the replica computes these prefixes now."""
        known = self._known
        for key in reversed(keys):  # the shortest is used by the most prompts: it is forgotten last
            known[key] = replica, now
            known.move_to_end(key)
        while len(known) > self._max_keys:
            known.popitem(last=False)
        self._forget_old(now)

    def _forget_old(self, now: float) -> None:
        """Drops a few of the keys that are too old, so that no call takes long."""
        for _ in range(4):
            if not self._known:
                return
            key = next(iter(self._known))
            if now - self._known[key][1] <= self._forgotten_after:
                return
            del self._known[key]
