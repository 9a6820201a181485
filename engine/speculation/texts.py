"""Keeps the texts that drafts are made from: one index for each tenant and adapter, bounded in memory.

Nothing is shared between tenants. Each has a bound of its own; where all together have too many tokens, the
tenant with the most loses its oldest, so that one that adds many texts takes none from those with few.
"""

from __future__ import annotations

from collections import deque

from engine.speculation.suffixes import Guess, SuffixIndex, Text

TENANT_TOKENS = 1 << 16
ALL_TOKENS = 1 << 19
"""Some 250 bytes each, where no two runs of tokens are equal: 130 MB."""
_DROPPED = 256
"""Tokens dropped at a time: a step waits for it."""


class OpenText:
    """A running request's text, with the index that it is in."""

    __slots__ = ("index", "tenant", "text")

    def __init__(self, tenant: _Tenant, index: SuffixIndex, text: Text) -> None:
        self.tenant = tenant
        self.index = index
        self.text = text

    def guess(self, most: int) -> Guess:
        """Returns what may follow the text as it stands."""
        return self.index.guess(self.text.token_ids, most)


class _Tenant:
    """One tenant's texts, oldest first."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.indexes: dict[str | None, SuffixIndex] = {}
        self.texts: deque[tuple[SuffixIndex, Text]] = deque()
        self.num_tokens = 0

    def drop(self, most: int) -> int:
        """Drops up to `most` tokens of its oldest text. Returns how many."""
        index, text = self.texts[0]
        num_dropped = index.drop(text, most)
        self.num_tokens -= num_dropped
        if not text.num_held:
            self.texts.popleft()
            if text.is_open:
                self.texts.append((index, text))  # it may grow: then it is dropped again later
        return num_dropped


class Texts:
    """The texts of all tenants."""

    def __init__(self, tenant_tokens: int = TENANT_TOKENS, all_tokens: int = ALL_TOKENS) -> None:
        self._tenant_tokens = tenant_tokens
        self._all_tokens = all_tokens
        self._tenants: dict[str, _Tenant] = {}
        self.num_tokens = 0
        """Indexed, of all tenants."""

    def num_tokens_of(self, tenant: str) -> int:
        """Returns the tokens of a tenant that are indexed."""
        return self._tenants[tenant].num_tokens if tenant in self._tenants else 0

    def open(self, tenant: str, adapter_digest: str | None, token_ids: list[int]) -> OpenText:
        """Adds a text, which may grow until it is closed."""
        owner = self._tenants.get(tenant)
        if owner is None:
            owner = self._tenants[tenant] = _Tenant(tenant)
        index = owner.indexes.setdefault(adapter_digest, SuffixIndex())
        text = Text(token_ids)
        owner.texts.append((index, text))
        return OpenText(owner, index, text)

    def extend(self, opened: OpenText, most: int) -> int:
        """Indexes up to `most` more tokens of a text, and drops the oldest where there are too many. Returns
        how many it indexed.
        """
        tenant = opened.tenant
        num_added = opened.index.extend(opened.text, most)
        tenant.num_tokens += num_added
        self.num_tokens += num_added
        while tenant.num_tokens > self._tenant_tokens:
            self.num_tokens -= tenant.drop(_DROPPED)
        while self.num_tokens > self._all_tokens:
            largest = max(self._tenants.values(), key=lambda one: one.num_tokens)
            self.num_tokens -= largest.drop(_DROPPED)
        return num_added

    def close(self, opened: OpenText) -> None:
        """Ends a text's growth; only what is indexed of it is kept."""
        text, tenant = opened.text, opened.tenant
        text.is_open = False
        if text.num_indexed < len(text.token_ids):
            text.token_ids = text.token_ids[: text.num_indexed]
        if not text.num_held:
            tenant.texts.remove((opened.index, text))
        if not tenant.texts:
            del self._tenants[tenant.name]
