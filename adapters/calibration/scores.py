"""What one model says of one sample: how likely it held each scored token, and what it would have said."""

from __future__ import annotations

import msgspec


class Scores(msgspec.Struct, frozen=True, array_like=True):
    """Parallel to the sample's scored tokens."""

    log_probs: list[float]
    """Natural logarithms, each token given all before it."""
    likeliest: list[int]
    """Token ids."""

    @property
    def nll(self) -> float:
        """Nats, of all scored tokens together."""
        return -sum(self.log_probs)


def encode_scores(scores: list[Scores]) -> bytes:
    return msgspec.msgpack.encode(scores)


def decode_scores(data: bytes) -> list[Scores]:
    """Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(data, type=list[Scores])
