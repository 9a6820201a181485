"""Divides a model over the ranks of a tensor-parallel group: which part of every weight is on which rank.

Each rank has whole attention heads with their keys and values, a part of the feed-forward's inner columns,
and a part of the vocabulary. Products that read a whole row and write a part of it need nothing ("column
parallel": qkv, gate_up); those that read a part and write a whole row are summed over the ranks ("row
parallel": o, down). Norms are on every rank.

Source: Megatron-LM (Shoeybi et al., 2019), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.model.config import GROUPS, ModelConfig

ROW_PARALLEL = ("o_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's place in a group of `size`."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size, f"rank {self.rank} of {self.size}"

    def part(self, count: int) -> slice:
        """Returns this rank's part of `count` things that are divided evenly."""
        assert count % self.size == 0, f"{count} over {self.size} ranks"
        each = count // self.size
        return slice(self.rank * each, (self.rank + 1) * each)


WHOLE = Shard()


def check_divides(config: ModelConfig, size: int) -> None:
    """Raises ValueError where a model cannot be divided over `size` ranks."""

    def refuse(field: str, count: int) -> None:
        raise ValueError(
            f"tensor_parallel: {size} ranks cannot share {field} = {count} of the base's config.json evenly; "
            "use a divisor of it"
        )

    if config.num_heads % size:
        refuse("num_attention_heads", config.num_heads)
    if config.num_kv_heads % size and size % config.num_kv_heads:
        refuse("num_key_value_heads", config.num_kv_heads)
    if config.intermediate_size % size:
        refuse("intermediate_size", config.intermediate_size)
    if config.hidden_size % size:
        refuse("hidden_size", config.hidden_size)


def sharded_config(config: ModelConfig, size: int) -> ModelConfig:
    """Returns the config of the model that one rank computes. The vocabulary stays whole: its parts are the
    embedding's and the head's.

    Fewer heads of keys and values than ranks are on several of them.
    """
    check_divides(config, size)
    return replace(
        config,
        num_heads=config.num_heads // size,
        num_kv_heads=max(1, config.num_kv_heads // size),
        intermediate_size=config.intermediate_size // size,
    )


def weight_part(config: ModelConfig, module: str, shard: Shard) -> tuple[slice, slice]:
    """Returns the outputs and inputs of a linear that a rank has; `config` is the whole model's."""
    everything = slice(None)
    if shard.size == 1:
        return everything, everything
    if module in ("k_proj", "v_proj"):
        return _scaled(_kv_heads(config, shard), config.head_dim), everything
    if module in GROUPS["qkv"]:
        return _scaled(shard.part(config.num_heads), config.head_dim), everything
    if module == "o_proj":
        return everything, _scaled(shard.part(config.num_heads), config.head_dim)
    inner = shard.part(config.intermediate_size)
    return (everything, inner) if module == "down_proj" else (inner, everything)


def has_bias_here(module: str, shard: Shard) -> bool:
    """Returns whether a rank adds the module's bias: to a sum over ranks, one of them does."""
    return module not in ROW_PARALLEL or shard.rank == 0


def vocabulary_part(vocab_size: int, shard: Shard) -> tuple[int, int]:
    """Returns (first, end) of a rank's tokens. The last ranks may have fewer than the others, or none."""
    each = -(-vocab_size // shard.size)
    return min(vocab_size, shard.rank * each), min(vocab_size, (shard.rank + 1) * each)


def _kv_heads(config: ModelConfig, shard: Shard) -> slice:
    if config.num_kv_heads % shard.size == 0:
        return shard.part(config.num_kv_heads)
    head = shard.rank * config.num_kv_heads // shard.size
    return slice(head, head + 1)


def _scaled(part: slice, factor: int) -> slice:
    return slice(part.start * factor, part.stop * factor)
