"""Decides whether an engine may serve beside others: of one base, in the same weights, under its own name."""

from __future__ import annotations

from collections.abc import Mapping

from engine.protocol import EngineInfo


def why_left_out(info: EngineInfo, base: str | None, serving: Mapping[str, EngineInfo]) -> str | None:
    """Returns why an engine may not join those that serve, with a remedy; None if it may.

    Args:
        base: the base model that all shall serve; None: that of those that serve.
        serving: the others, by endpoint.
    """
    if base is not None and info.base != base:
        return (
            f"the engine {info.engine_id} serves {info.base!r}, and engines of {base!r} are "
            "expected: set its ROOTSTOCK_ENGINE_BASE_NAME, or name its endpoint with its own base"
        )
    for endpoint, other in serving.items():
        if other.engine_id == info.engine_id:
            return (
                f"its id {info.engine_id} is that of the engine at {endpoint}: "
                "give each a ROOTSTOCK_ENGINE_ENGINE_ID of its own"
            )
        if (other.base_digest, other.quantization) != (info.base_digest, info.quantization):
            return (
                f"it serves {info.base} {info.base_digest[:12]} as {info.quantization}, "
                f"{other.engine_id} serves {other.base} {other.base_digest[:12]} as {other.quantization}: "
                "start both on one base with one quantization"
            )
    return None
