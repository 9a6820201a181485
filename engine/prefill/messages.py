"""Defines the messages between an engine that decodes and one that computes prompts for it.

msgspec structs, encoded as MessagePack, over a socket of their own: fields are added with defaults, never
renamed or reordered. `Blocks` is followed by a second part with the bytes, unless these are in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.protocol import AdapterRef, EngineInfo, PriorityClass


class CacheFormat(msgspec.Struct, frozen=True):
    """What keys and values are of, and how they are stored: equal on both sides, or nothing is moved."""

    base_digest: str
    quantization: str
    """Of the base's weights."""
    kv_dtype: str
    block_size: int
    """Tokens of a block."""
    num_layers: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, info: EngineInfo, shape: Sequence[int], dtype: str) -> CacheFormat:
        """Returns the format of an engine's cache. `shape`: of its tensor, as `engine.model.cache` has it."""
        num_layers, _, _, num_kv_heads, block_size, head_dim = shape
        kv_dtype = dtype.removeprefix("torch.")
        return cls(
            info.base_digest, info.quantization, kv_dtype, block_size, num_layers, num_kv_heads, head_dim
        )

    def difference(self, other: CacheFormat) -> str:
        """Returns in words what differs from another engine's format; empty when nothing does."""
        return ", ".join(
            f"{name} {getattr(self, name)} instead of {getattr(other, name)}"
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(other, name)
        )


class SharedMemory(msgspec.Struct, frozen=True):
    """A handle of device memory that processes of the same host can open."""

    host: str
    """Identifies the running host."""
    handle: bytes
    piece_bytes: int


# From the engine that decodes.


class Greeting(msgspec.Struct, frozen=True, tag="greeting"):
    """The first message; answered by Welcome or Refusal."""

    engine_id: str
    format: CacheFormat


class AskPrompt(msgspec.Struct, frozen=True, tag="ask"):
    """Requests the keys and values of a prompt: Blocks, as they are computed, then PromptEnded."""

    fetch_id: str
    """Unique among all engines and starts."""
    tenant: str
    prompt_ids: list[int]
    """Of full blocks."""
    adapter: AdapterRef | None
    priority: PriorityClass
    first_block: int
    """Blocks before it are not sent."""
    is_shared: bool = False
    """Blocks are left in shared memory instead of being sent."""


class CancelPrompt(msgspec.Struct, frozen=True, tag="cancel"):
    """Stops a prompt. Unknown ids are ignored; nothing answers."""

    fetch_id: str


class PieceTaken(msgspec.Struct, frozen=True, tag="taken"):
    """Returns the memory of one message with blocks: as many may be under way as there are pieces."""

    piece: int


SourceMessage = Greeting | AskPrompt | CancelPrompt | PieceTaken


# From the engine that computes prompts.


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """Prompts may be requested."""

    engine_id: str
    shared: SharedMemory | None = None


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """No prompts may be requested, until one of the engines is restarted."""

    reason: str


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """Sent twice a second: the sender is alive, and how late it is."""

    predicted_wait: dict[str, float]
    """By priority class: seconds until a short prompt would begin to be computed."""
    prompt_rate: float
    """Prompt tokens computed per second; 0: not known."""
    draining: bool = False


class Blocks(msgspec.Struct, frozen=True, tag="blocks"):
    """Consecutive blocks of a prompt, in order, in a piece of memory that PieceTaken returns."""

    fetch_id: str
    first_block: int
    num_blocks: int
    piece: int


class PromptEnded(msgspec.Struct, frozen=True, tag="ended"):
    """The last message on a prompt."""

    fetch_id: str
    cause: str = ""
    """Why it was not computed: "refused" or "failed"; empty when it was."""
    reason: str = ""
    """In words."""
    cached_tokens: int = 0
    """Of the prompt, those that came from the prefix cache."""


SenderMessage = Welcome | Refusal | Beat | Blocks | PromptEnded
