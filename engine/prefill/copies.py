"""Defines how blocks are copied out of one engine's cache and into another's.

`engine.device.cache_copies` does it in host memory, `engine.device.gpu_cache_copies` on a GPU.
"""

from __future__ import annotations

from typing import Any, Protocol

from engine.prefill.messages import SharedMemory
from engine.scheduling.prompt_fetches import CacheWriter

PIECE_BYTES = 32 << 20
"""Of one message with blocks; at least one block."""
PIECES = 8
"""Messages with blocks that are under way between two engines: what bounds memory on both sides."""


class OutgoingPieces(Protocol):
    """The memory through which one client's blocks leave, in `PIECES` pieces. Used by one thread."""

    def share(self) -> SharedMemory | None:
        """Returns where processes of the same host may read the pieces; None where they cannot."""
        ...

    def fill(self, piece: int, block_ids: list[int], is_shared: bool) -> Any:
        """Copies blocks into a piece, and waits until they are there. Returns their bytes, unless they stay
        in shared memory.
        """
        ...


class IncomingPieces(Protocol):
    """The memory into which one sender's blocks come. Used by one thread."""

    @property
    def is_shared(self) -> bool:
        """Whether it reads the sender's memory itself."""
        ...

    def stage(self, piece: int, num_blocks: int, payload: Any) -> Any:
        """Returns what the writer takes. `payload`: the bytes that came; None with shared memory. Raises
        ValueError when these are not `num_blocks` blocks.
        """
        ...

    def is_free(self, data: Any) -> bool:
        """Returns whether what `stage` returned has been copied, after it was written or dropped."""
        ...


class CacheCopies(CacheWriter, Protocol):
    """Copies blocks from and to one cache."""

    @property
    def blocks_per_piece(self) -> int: ...

    @property
    def block_bytes(self) -> int:
        """Of one block in all layers."""
        ...

    def mark_launched(self) -> Any:
        """Returns a mark of the steps launched so far."""
        ...

    def is_over(self, mark: Any) -> bool:
        """Returns whether the steps before the mark are over."""
        ...

    def outgoing(self) -> OutgoingPieces: ...

    def incoming(self, shared: SharedMemory | None) -> IncomingPieces:
        """`shared`: the sender's memory, which is used if it can be opened."""
        ...
