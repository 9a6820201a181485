"""Formats what an engine's page says of prompts that another engine computes."""

from __future__ import annotations

from admin import formatting
from engine.gauges import EngineStats


def prompt_facts(stats: EngineStats) -> list[tuple[str, str]]:
    """Returns titles and values; none for an engine that has no part in it."""
    facts = []
    if stats.prefill_sources or stats.prompts_fetched or stats.fetch_fallbacks:
        causes = [f"{count:,} {cause}" for cause, count in sorted(stats.fetch_fallbacks.items())]
        facts += [
            ("Prefill engines", f"{stats.prefill_sources:,} connected"),
            (
                "Prompts from prefill engines",
                f"{stats.prompts_fetched:,}, {stats.prompts_fetching:,} under way",
            ),
            ("Prompt tokens from prefill engines", f"{stats.fetched_tokens:,}"),
            ("Long prompts computed here", ", ".join(causes) or formatting.NOTHING),
        ]
    if stats.prompts_exported or stats.exported_tokens:
        facts += [
            ("Prompts computed for other engines", f"{stats.prompts_exported:,}"),
            ("Prompt tokens sent to other engines", f"{stats.exported_tokens:,}"),
        ]
    return facts
