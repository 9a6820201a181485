"""Builds the pools of the base models that a process serves, from settings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from adapters.served_bases import ServedBase
from api.grammars.checks import GrammarChecks
from api.pools import BasePool, Pools
from routing.replica_set import ReplicaSet
from telemetry.metrics import ServingMetrics
from tokenization.codec import TextCodec
from tokenization.reasoning.efforts import OfferedReasoning
from tokenization.reasoning.formats import ReasoningFormat
from tokenization.tools.formats import ToolFormat


async def build_pools(bases: Sequence[ServedBase], process: str, metrics: ServingMetrics) -> Pools:
    """Returns the pools of `bases`, not connected yet. `process` appears in the engines' logs. Raises OSError
    without a usable tokenizer, ValueError for formats that a base cannot have.
    """
    texts = [await asyncio.to_thread(TextCodec.load, base.path) for base in bases]
    return Pools(
        *(_pool(base, text, process, metrics) for base, text in zip(bases, texts, strict=True)),
    )


def _pool(base: ServedBase, text: TextCodec, process: str, metrics: ServingMetrics) -> BasePool:
    tool_format = ToolFormat.of(text, base.tool_format)
    return BasePool(
        name=base.name,
        engine=ReplicaSet(base.engines, process, base=base.name),
        text=text,
        grammars=GrammarChecks(base.path, metrics),
        tool_format=tool_format,
        reasoning=_reasoning(base, text, tool_format),
    )


def _reasoning(base: ServedBase, text: TextCodec, tools: ToolFormat | None) -> OfferedReasoning | None:
    """Returns None for a base that does not think."""
    format = ReasoningFormat.of(text, base.reasoning_format, tools)
    budgets = {str(effort): budget for effort, budget in base.reasoning_budgets.items()}
    return None if format is None else OfferedReasoning.of(format, budgets)
