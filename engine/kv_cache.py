"""Allocates blocks of the KV cache, and finds blocks that already hold a prompt's prefix.

Tracks block ids, reference counts and the index of cached prefixes; the tensors behind the ids are
`engine.model.cache`'s. Block 0 is the null block: never allocated, a place for padding to point at.

A prefix is identified by a chain of SHA-256 over (parent hash, token ids of one full block), rooted in tenant
and adapter digest: equal tokens of another tenant or on another adapter have another hash, so they never hit.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import sha256

NULL_BLOCK = 0


def prefix_root(tenant: str, adapter_digest: str | None) -> bytes:
    """Returns the root of the hash chain of a tenant's requests on one adapter."""
    salt = sha256(tenant.encode("utf-8", "surrogatepass")).digest()
    return sha256(salt + (adapter_digest or "").encode("utf-8", "surrogatepass")).digest()


class BlockPool:
    """All blocks. A block is held (references > 0) or free; a free block keeps its contents until it is
    reallocated.

    Invariants: the null block is neither; free + held == total; a hash identifies at most one block.
    """

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        """Raises ValueError when there is no block besides the null block."""
        if num_blocks < 2:
            raise ValueError(f"num_blocks must be at least 2 (one is the null block), not {num_blocks}")
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        self.block_size = block_size
        self.num_blocks = num_blocks - 1
        """Blocks that can be held, without the null block."""
        self._references = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        # Eviction order, first to last. Blocks without registered contents come before all others.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self.num_cached = 0
        """Free blocks whose contents can still be found."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_held(self) -> int:
        return self.num_blocks - len(self._free)

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """Returns the blocks that hold the hashed contents, up to the first hash that is gone."""
        found = []
        for block_hash in hashes:
            block_id = self._by_hash.get(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def num_free_besides(self, block_ids: Iterable[int]) -> int:
        """Returns how many blocks would be free if `block_ids` were held."""
        references = self._references
        return len(self._free) - sum(1 for block_id in block_ids if not references[block_id])

    def hold(self, block_ids: Iterable[int]) -> None:
        """Adds one reference to each block; a free block leaves the free list and keeps its contents."""
        for block_id in block_ids:
            if not self._references[block_id]:
                del self._free[block_id]
                self.num_cached -= self._hashes[block_id] is not None
            self._references[block_id] += 1

    def take(self) -> int:
        """Allocates the free block that is first in eviction order, held once. There must be one."""
        block_id, _ = self._free.popitem(last=False)
        block_hash = self._hashes[block_id]
        if block_hash is not None:
            self._hashes[block_id] = None
            del self._by_hash[block_hash]
            self.num_cached -= 1
        self._references[block_id] = 1
        return block_id

    def release(self, block_ids: Sequence[int]) -> None:
        """Drops one reference to each block of a table, in token order.

        The last block is evicted first: without the blocks before it, it could never be hit.
        """
        for block_id in reversed(block_ids):
            self._references[block_id] -= 1
            assert self._references[block_id] >= 0, f"block {block_id} released more often than held"
            if not self._references[block_id]:
                self._free[block_id] = None
                if self._hashes[block_id] is None:
                    self._free.move_to_end(block_id, last=False)
                else:
                    self.num_cached += 1

    def register(self, block_id: int, block_hash: bytes) -> None:
        """Adds a full, computed block to the prefix cache. If another block already has those contents, that
        one stays.
        """
        if block_hash not in self._by_hash:
            self._by_hash[block_hash] = block_id
            self._hashes[block_id] = block_hash
            self.num_cached += not self._references[block_id]

    def invalidate(self, hashes: Iterable[bytes]) -> None:
        """Removes contents from the prefix cache, because they are not valid."""
        for block_hash in hashes:
            block_id = self._by_hash.pop(block_hash, None)
            if block_id is not None:
                self._hashes[block_id] = None
                self.num_cached -= not self._references[block_id]

    def held_ids(self) -> set[int]:
        """Returns the ids of held blocks. For checks: linear in the number of blocks."""
        return {block_id for block_id, references in enumerate(self._references) if references}

    def check_integrity(self) -> None:
        """Asserts the invariants. Linear in the number of blocks: for idle moments and tests."""
        held = self.held_ids()
        assert all(references >= 0 for references in self._references)
        assert NULL_BLOCK not in self._free, "the null block is free"
        assert self._references[NULL_BLOCK] == 0, "the null block is held"
        assert self._free.keys().isdisjoint(held), "a block is free and held"
        assert len(self._free) + len(held) == self.num_blocks, "free + held != total"
        registered = {
            block_hash: block_id for block_id, block_hash in enumerate(self._hashes) if block_hash is not None
        }
        assert registered == self._by_hash, "the index disagrees with the blocks"
        assert self.num_cached == sum(self._hashes[block_id] is not None for block_id in self._free)


class BlockTable:
    """One request's blocks, in token order, and the hashes of its full ones. Survives preemption, empty.

    Invariant kept by the owner: registered_len <= computed tokens <= capacity.
    """

    __slots__ = ("_hashes", "_pool", "_root", "block_ids", "capacity", "registered_len")

    def __init__(self, pool: BlockPool, root: bytes) -> None:
        self._pool = pool
        self._root = root
        self._hashes: list[bytes] = []
        self.block_ids: list[int] = []
        self.capacity = 0
        """Tokens that the blocks have room for."""
        self.registered_len = 0
        """Tokens in blocks that are registered, or whose contents another registered block holds."""

    def match(self, token_ids: list[int], num_reusable: int | None = None) -> list[int]:
        """Returns the cached blocks that this (empty) table could begin with.

        `num_reusable` bounds the tokens that may come from the cache; by default all but the last.
        """
        assert not self.block_ids
        num_useful = (len(token_ids) - 1 if num_reusable is None else num_reusable) // self._pool.block_size
        self._extend_hashes(token_ids, num_useful)
        return self._pool.find(self._hashes[:num_useful])

    def hashes(self, token_ids: list[int], num_blocks: int) -> list[bytes]:
        """Returns the hashes of the first blocks, which must be full."""
        self._extend_hashes(token_ids, num_blocks)
        return self._hashes[:num_blocks]

    def open(self, matched: list[int], total_len: int) -> None:
        """Holds the blocks that `match` found and allocates the rest for `total_len` tokens. There must be
        enough.
        """
        pool = self._pool
        pool.hold(matched)
        num_more = -(-total_len // pool.block_size) - len(matched)
        self.block_ids = matched + [pool.take() for _ in range(num_more)]
        self.capacity = len(self.block_ids) * pool.block_size
        self.registered_len = len(matched) * pool.block_size

    def grow(self) -> int:
        """Allocates one more block and returns its id. There must be one."""
        block_id = self._pool.take()
        self.block_ids.append(block_id)
        self.capacity += self._pool.block_size
        return block_id

    def trim(self, num_tokens: int) -> None:
        """Releases the blocks beyond those of its first `num_tokens`, which no registered one is among."""
        num_kept = -(-num_tokens // self._pool.block_size)
        assert num_tokens >= self.registered_len, "a registered block is given back"
        if num_kept < len(self.block_ids):
            self._pool.release(self.block_ids[num_kept:])
            del self.block_ids[num_kept:]
            self.capacity = num_kept * self._pool.block_size

    def register_computed(self, token_ids: list[int], computed_len: int) -> None:
        """Registers the blocks that have been filled since the last call."""
        block_size = self._pool.block_size
        num_full = computed_len // block_size
        self._extend_hashes(token_ids, num_full)
        for index in range(self.registered_len // block_size, num_full):
            self._pool.register(self.block_ids[index], self._hashes[index])
        self.registered_len = num_full * block_size

    def invalidate(self) -> None:
        """Removes the contents of all its blocks from the prefix cache: some values are not finite."""
        self._pool.invalidate(self._hashes)

    def close(self) -> None:
        """Releases all blocks; their contents can be found until they are reallocated."""
        self._pool.release(self.block_ids)
        self.block_ids = []
        self.capacity = 0
        self.registered_len = 0

    def _extend_hashes(self, token_ids: list[int], num_blocks: int) -> None:
        hashes = self._hashes
        block_size = self._pool.block_size
        parent = hashes[-1] if hashes else self._root
        for start in range(len(hashes) * block_size, num_blocks * block_size, block_size):
            parent = sha256(parent + array("I", token_ids[start : start + block_size]).tobytes()).digest()
            hashes.append(parent)
