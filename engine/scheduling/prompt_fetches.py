"""Fetches the keys and values of long prompts from engines that compute them (prefill replicas).

A request whose prompt is being fetched is not queued yet: it waits, and holds the blocks that the prompt
fills. When the last block has come, the blocks are registered in the prefix cache and the request is queued:
it is admitted as after a hit. Nothing else in the scheduler knows of fetches.

A fetch that fails (its engine is gone, refuses, or makes no progress) ends in the same way: the request finds
the blocks that have come, and the rest of its prompt is computed here.

Who owns blocks when. A fetch holds its blocks from `begin` until its request is admitted or ends. Running
requests have precedence: when they need blocks, `release_one` gives up those of the latest fetch. All methods
belong to the step loop's thread, which also writes what has come: so a block is never written after it was
given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from engine.kv_cache import BlockPool
from engine.protocol import AdapterRef, PriorityClass
from engine.request import Request

ABANDONED = "abandoned"
"""The cause of a fetch that ends with its request."""
MAX_HELD_SHARE = 0.5
"""Of all blocks, those that fetches may hold together."""


class WantedPrompt(NamedTuple):
    """A prompt to be computed elsewhere; its length is a multiple of the block size."""

    tenant: str
    token_ids: list[int]
    adapter: AdapterRef | None
    priority: PriorityClass
    first_block: int
    """Blocks before it are here already."""


@dataclass(slots=True)
class ArrivedBlocks:
    """Keys and values of consecutive blocks of a prompt."""

    fetch_id: str
    first_block: int
    num_blocks: int
    data: Any
    """What the writer takes."""
    origin: Any = None
    """The source's own."""
    is_lost: bool = False
    """The data is another engine's memory, which may be used for something else by now: the connection to it
    is gone. Set by any thread."""


@dataclass(frozen=True, slots=True)
class FetchEnded:
    """Nothing more will come of a fetch."""

    fetch_id: str
    cause: str = ""
    """Why not all of it has come: "lost", "refused", "invalid", or "failed" for values that are not finite;
    empty when all has."""
    cached_tokens: int = 0
    """Tokens of the prompt that the other engine had in its prefix cache."""


class PromptSource(Protocol):
    """Asks other engines for prompts. Reports what comes as `ArrivedBlocks` and `FetchEnded`, later."""

    @property
    def num_connected(self) -> int:
        """Engines that would compute a prompt."""
        ...

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why other engines do not."""
        ...

    def ask(self, prompt: WantedPrompt) -> str | None:
        """Returns the fetch's id, or None when no engine would compute the prompt in time."""
        ...

    def cancel(self, fetch_id: str) -> None: ...

    def taken(self, blocks: ArrivedBlocks) -> None:
        """Takes note that blocks were written or dropped: their memory may be used again."""
        ...


class CacheWriter(Protocol):
    """Writes to the cache beside the steps."""

    def follow_steps(self) -> None:
        """Orders later writes behind every step launched so far, which may use the same blocks."""
        ...

    def write(self, block_ids: list[int], data: Any) -> None: ...

    def precede_steps(self) -> None:
        """Orders steps launched from now on behind every write so far."""
        ...


@dataclass(slots=True)
class FetchCounters:
    """Monotonic since the start of the engine."""

    fetched: int = 0
    """Prompts that came as a whole."""
    fetched_tokens: int = 0
    """Tokens whose keys and values came, also of prompts that came in part."""
    fallbacks: dict[str, int] = field(default_factory=dict)
    """By cause: long prompts that were computed here, or their rest."""

    def count_fallback(self, cause: str) -> None:
        self.fallbacks[cause] = self.fallbacks.get(cause, 0) + 1


@dataclass(slots=True, eq=False)
class _Fetch:
    request: Request
    fetch_id: str
    hashes: list[bytes]
    """Of all blocks that are wanted."""
    block_ids: list[int]
    """The blocks held, in token order."""
    num_own: int
    """Blocks from the first on that were in the prefix cache."""
    num_valid: int
    """Blocks from the first on that hold their contents."""
    cached_tokens: int
    """Tokens of the prompt that some engine's prefix cache had: the tenant is billed for them as cached."""
    deadline: float
    has_ended: bool = False
    is_queued: bool = False


class PromptFetches:
    """The requests whose prompts are fetched, until they are admitted. Without a source there are none."""

    def __init__(self, pool: BlockPool, clock: Callable[[], float]) -> None:
        self.counters = FetchCounters()
        self._pool = pool
        self._clock = clock
        self._source: PromptSource | None = None
        self._writer: CacheWriter | None = None
        self._min_tokens = 0
        self._timeout_s = 0.0
        self._by_request: dict[Request, _Fetch] = {}
        self._by_id: dict[str, _Fetch] = {}
        """Those that have not ended."""

    def connect(self, source: PromptSource, writer: CacheWriter, min_tokens: int, timeout_s: float) -> None:
        """Fetches prompts from now on: those of which at least `min_tokens` are not cached. A fetch is given
        up when nothing has come of it for `timeout_s`.
        """
        self._source, self._writer = source, writer
        self._min_tokens, self._timeout_s = min_tokens, timeout_s

    # A fetch ----------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> bool:
        """Begins to fetch a new request's prompt. Returns False when it is to be queued instead."""
        if self._source is None or request.num_reusable < self._min_tokens or request.index:
            return False
        pool, block_size = self._pool, self._pool.block_size
        num_blocks = request.num_reusable // block_size
        matched = request.table.match(request.token_ids, request.num_reusable)
        num_missing = num_blocks - len(matched)
        if num_missing * block_size < self._min_tokens:
            return False
        num_free = pool.num_free_besides(matched)
        if num_missing > num_free or num_blocks + self._num_held > MAX_HELD_SHARE * pool.num_blocks:
            self.counters.count_fallback("memory")
            return False
        token_ids = request.token_ids[: num_blocks * block_size]
        submit = request.group.submit
        fetch_id = self._source.ask(
            WantedPrompt(submit.tenant, token_ids, submit.adapter, submit.priority, len(matched))
        )
        if fetch_id is None:
            self.counters.count_fallback("unavailable")
            return False
        pool.hold(matched)
        block_ids = matched + [pool.take() for _ in range(num_missing)]
        assert self._writer is not None
        self._writer.follow_steps()
        fetch = _Fetch(
            request,
            fetch_id,
            request.table.hashes(token_ids, num_blocks),
            block_ids,
            num_own=len(matched),
            num_valid=len(matched),
            cached_tokens=len(matched) * block_size,
            deadline=self._clock() + self._timeout_s,
        )
        self._by_request[request] = self._by_id[fetch_id] = fetch
        return True

    def take(self, event: ArrivedBlocks | FetchEnded) -> None:
        """Takes in what a source reports."""
        fetch = self._by_id.get(event.fetch_id)
        if isinstance(event, ArrivedBlocks):
            self._take_blocks(fetch, event)
        elif fetch is not None:
            fetch.cached_tokens = max(fetch.cached_tokens, event.cached_tokens)
            is_whole = fetch.num_valid == len(fetch.block_ids)
            self._end(fetch, event.cause or ("" if is_whole else "invalid"))

    def _take_blocks(self, fetch: _Fetch | None, blocks: ArrivedBlocks) -> None:
        assert self._source is not None
        assert self._writer is not None
        if fetch is not None and not blocks.is_lost:
            end = blocks.first_block + blocks.num_blocks
            if blocks.first_block == fetch.num_valid and end <= len(fetch.block_ids):
                self._writer.write(fetch.block_ids[blocks.first_block : end], blocks.data)
                fetch.num_valid = end
                fetch.deadline = self._clock() + self._timeout_s
                self.counters.fetched_tokens += blocks.num_blocks * self._pool.block_size
            else:
                self._cancel(fetch, "invalid")
        self._source.taken(blocks)

    def _cancel(self, fetch: _Fetch, cause: str) -> None:
        assert self._source is not None
        self._source.cancel(fetch.fetch_id)
        self._end(fetch, cause)

    def _end(self, fetch: _Fetch, cause: str) -> None:
        """Puts what has come into the prefix cache, and holds it there for the request."""
        assert self._writer is not None
        self._writer.precede_steps()
        del self._by_id[fetch.fetch_id]
        fetch.has_ended = True
        if cause == "failed":
            fetch.num_valid = fetch.num_own
        pool, hashes = self._pool, fetch.hashes[: fetch.num_valid]
        for block_id, block_hash in zip(fetch.block_ids, hashes, strict=False):
            pool.register(block_id, block_hash)
        found = pool.find(hashes)  # another block may have the same contents: that one will be hit
        pool.hold(found)
        pool.release(fetch.block_ids)
        fetch.block_ids = found
        if not cause:
            self.counters.fetched += 1
        elif cause != ABANDONED:
            self.counters.count_fallback(cause)

    # Requests ---------------------------------------------------------------------------------------------

    def take_ready(self) -> list[Request]:
        """Returns the requests whose fetches have ended since the last call: they are to be queued."""
        if len(self._by_request) == len(self._by_id):
            return []
        ready = [fetch for fetch in self._by_request.values() if fetch.has_ended and not fetch.is_queued]
        for fetch in ready:
            fetch.is_queued = True
        return [fetch.request for fetch in ready]

    def waiting(self) -> Iterator[Request]:
        """Yields the requests that are not queued yet."""
        for fetch in self._by_request.values():
            if not fetch.is_queued:
                yield fetch.request

    def admitted(self, request: Request) -> int | None:
        """Releases the blocks of a request that has just taken them over. Returns how many of its tokens
        were cached anywhere before; None if its prompt was not fetched.
        """
        fetch = self._by_request.pop(request, None)
        if fetch is None:
            return None
        self._pool.release(fetch.block_ids)
        return fetch.cached_tokens

    def forget(self, request: Request) -> bool:
        """Releases what is held for a request that ends before it is admitted. Returns whether it was not
        queued yet.
        """
        fetch = self._by_request.get(request)
        if fetch is None:
            return False
        if not fetch.has_ended:
            self._cancel(fetch, ABANDONED)
        del self._by_request[request]
        self._pool.release(fetch.block_ids)
        return not fetch.is_queued

    # Time and memory --------------------------------------------------------------------------------------

    @property
    def has_expired(self) -> bool:
        """Whether nothing has come of a fetch for too long."""
        return bool(self._by_id) and min(fetch.deadline for fetch in self._by_id.values()) <= self._clock()

    def give_up_expired(self) -> None:
        if self._by_id:
            now = self._clock()
            for fetch in [fetch for fetch in self._by_id.values() if fetch.deadline <= now]:
                self._cancel(fetch, "timeout")

    def release_one(self) -> bool:
        """Gives up blocks that are held for a request which does not run. Returns False when there are none.

        They stay in the prefix cache until another request takes them.
        """
        holding = [fetch for fetch in self._by_request.values() if fetch.block_ids]
        if not holding:
            return False
        ended = [fetch for fetch in holding if fetch.has_ended]
        fetch = (ended or holding)[-1]
        if not fetch.has_ended:
            self._cancel(fetch, "memory")
        self._pool.release(fetch.block_ids)
        fetch.block_ids = []
        return True

    @property
    def num_sources(self) -> int:
        """Engines that would compute a prompt now."""
        return 0 if self._source is None else self._source.num_connected

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why engines that should compute prompts do not."""
        return () if self._source is None else self._source.refusals

    @property
    def num_fetching(self) -> int:
        return len(self._by_id)

    @property
    def _num_held(self) -> int:
        return sum(len(fetch.block_ids) for fetch in self._by_request.values())

    def held_ids(self) -> set[int]:
        """Returns the blocks that are held. For checks."""
        return {block_id for fetch in self._by_request.values() for block_id in fetch.block_ids}

    def check_integrity(self) -> None:
        """Asserts that every fetch is either under way or has ended."""
        under_way = {fetch.fetch_id for fetch in self._by_request.values() if not fetch.has_ended}
        assert under_way == self._by_id.keys()
        for request, fetch in self._by_request.items():
            assert request.is_waiting
            assert not request.table.block_ids
            assert fetch.has_ended or len(fetch.block_ids) == len(fetch.hashes)
            assert fetch.has_ended or not fetch.is_queued
