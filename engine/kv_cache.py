"""Blocks of the KV cache: who holds them, which contents they still have, in which order they are given away.

Owns block ids, reference counts and the index of cached prefixes. Block 0 is the null block: never handed
out, a place for padding to point at. Refuses to know the tensors behind the ids, and requests.

A prefix is named by a chain of SHA-256 over (parent, token ids of one full block), rooted in tenant and
adapter digest: equal tokens of another tenant or on another adapter have another name, so they can never be
hit.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import sha256

NULL_BLOCK = 0


def prefix_root(tenant: str, adapter_digest: str | None) -> bytes:
    """Where the hash chain of one tenant's requests on one adapter begins."""
    salt = sha256(tenant.encode("utf-8", "surrogatepass")).digest()
    return sha256(salt + (adapter_digest or "").encode("utf-8", "surrogatepass")).digest()


class BlockPool:
    """All blocks. A block is held (references > 0) or free; a free one keeps its contents until it is given
    away.

    Invariants: the null block is neither; free + held == total; a hash names at most one block.
    """

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        """Raises ValueError when there is no block besides the null block."""
        if num_blocks < 2:
            raise ValueError(f"num_blocks must be at least 2 (one is the null block), not {num_blocks}")
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        self.block_size = block_size
        self.num_blocks = num_blocks - 1
        """Blocks that can be held: the null block is not counted."""
        self._references = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        # Eviction order: the first goes first. Blocks without contents worth keeping stand before all others.
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
        """The blocks that still have the contents named, up to the first that is gone."""
        found = []
        for name in hashes:
            block_id = self._by_hash.get(name)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def num_free_besides(self, block_ids: Iterable[int]) -> int:
        """Free blocks there would be if `block_ids` were held."""
        references = self._references
        return len(self._free) - sum(1 for block_id in block_ids if not references[block_id])

    def hold(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each; a free one leaves the free list with its contents."""
        for block_id in block_ids:
            if not self._references[block_id]:
                del self._free[block_id]
                self.num_cached -= self._hashes[block_id] is not None
            self._references[block_id] += 1

    def take(self) -> int:
        """Give away the free block whose contents are missed least, held once. There must be one."""
        block_id, _ = self._free.popitem(last=False)
        name = self._hashes[block_id]
        if name is not None:
            self._hashes[block_id] = None
            del self._by_hash[name]
            self.num_cached -= 1
        self._references[block_id] = 1
        return block_id

    def release(self, block_ids: Sequence[int]) -> None:
        """Drop one reference of each block of a table, in token order.

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

    def name(self, block_id: int, name: bytes) -> None:
        """Make a full, computed block findable.

        Where another block has those contents already, it stays the one.
        """
        if name not in self._by_hash:
            self._by_hash[name] = block_id
            self._hashes[block_id] = name
            self.num_cached += not self._references[block_id]

    def forget(self, names: Iterable[bytes]) -> None:
        """Make contents unfindable: they are not to be trusted."""
        for name in names:
            block_id = self._by_hash.pop(name, None)
            if block_id is not None:
                self._hashes[block_id] = None
                self.num_cached -= not self._references[block_id]

    def held_ids(self) -> set[int]:
        """For checks: linear in the number of blocks."""
        return {block_id for block_id, references in enumerate(self._references) if references}

    def check_integrity(self) -> None:
        """Assert the invariants. Linear in the number of blocks: for idle moments and tests."""
        held = self.held_ids()
        assert all(references >= 0 for references in self._references)
        assert NULL_BLOCK not in self._free, "the null block is free"
        assert self._references[NULL_BLOCK] == 0, "the null block is held"
        assert self._free.keys().isdisjoint(held), "a block is free and held"
        assert len(self._free) + len(held) == self.num_blocks, "free + held != total"
        named = {name: block_id for block_id, name in enumerate(self._hashes) if name is not None}
        assert named == self._by_hash, "the index disagrees with the blocks"
        assert self.num_cached == sum(self._hashes[block_id] is not None for block_id in self._free)


class BlockTable:
    """One request's blocks, in token order, and the names of its full ones. Survives preemption: then it is
    empty.

    The owner keeps named_len <= computed tokens <= capacity.
    """

    __slots__ = ("_names", "_pool", "_root", "block_ids", "capacity", "named_len")

    def __init__(self, pool: BlockPool, root: bytes) -> None:
        self._pool = pool
        self._root = root
        self._names: list[bytes] = []
        self.block_ids: list[int] = []
        self.capacity = 0
        """Tokens the blocks have room for."""
        self.named_len = 0
        """Tokens in blocks that are findable, or whose contents another findable block has."""

    def match(self, token_ids: list[int], num_reusable: int | None = None) -> list[int]:
        """Cached blocks this (empty) table could begin with.

        `num_reusable`: of how many tokens at most; of all but the last unless told.
        """
        assert not self.block_ids
        num_useful = (len(token_ids) - 1 if num_reusable is None else num_reusable) // self._pool.block_size
        self._extend_names(token_ids, num_useful)
        return self._pool.find(self._names[:num_useful])

    def open(self, matched: list[int], total_len: int) -> None:
        """Hold what `match` found and take blocks for all `total_len` tokens. There must be enough."""
        pool = self._pool
        pool.hold(matched)
        num_more = -(-total_len // pool.block_size) - len(matched)
        self.block_ids = matched + [pool.take() for _ in range(num_more)]
        self.capacity = len(self.block_ids) * pool.block_size
        self.named_len = len(matched) * pool.block_size

    def grow(self) -> int:
        """Take one more block. There must be one."""
        block_id = self._pool.take()
        self.block_ids.append(block_id)
        self.capacity += self._pool.block_size
        return block_id

    def name_computed(self, token_ids: list[int], computed_len: int) -> None:
        """Make the blocks that computation has filled since last time findable."""
        block_size = self._pool.block_size
        num_full = computed_len // block_size
        self._extend_names(token_ids, num_full)
        for index in range(self.named_len // block_size, num_full):
            self._pool.name(self.block_ids[index], self._names[index])
        self.named_len = num_full * block_size

    def forget(self) -> None:
        """Make the contents of all its blocks unfindable: something in them is not finite."""
        self._pool.forget(self._names)

    def close(self) -> None:
        """Give all blocks back; their contents can still be found until they are given away."""
        self._pool.release(self.block_ids)
        self.block_ids = []
        self.capacity = 0
        self.named_len = 0

    def _extend_names(self, token_ids: list[int], num_blocks: int) -> None:
        names = self._names
        block_size = self._pool.block_size
        parent = names[-1] if names else self._root
        for start in range(len(names) * block_size, num_blocks * block_size, block_size):
            parent = sha256(parent + array("I", token_ids[start : start + block_size]).tobytes()).digest()
            names.append(parent)
