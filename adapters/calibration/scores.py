"""Defines the scores of one sample: the log probability of each scored token, and the most likely token."""

from __future__ import annotations

import msgspec


class Scores(msgspec.Struct, frozen=True, array_like=True):
    """Scores parallel to the sample's scored tokens."""

    log_probs: list[float]
    """Natural logarithms, each token given all before it."""
    likeliest: list[int]
    """Token ids of the most likely tokens."""

    @property
    def nll(self) -> float:
        """Returns the negative log likelihood of all scored tokens together, in nats."""
        return -sum(self.log_probs)


def encode_scores(scores: list[Scores]) -> bytes:
    return msgspec.msgpack.encode(scores)


def decode_scores(data: bytes) -> list[Scores]:
    """Decodes scores. Raises msgspec.DecodeError."""
    return msgspec.msgpack.decode(data, type=list[Scores])
