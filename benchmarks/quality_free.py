"""Measures what quantising costs outside the tasks that adapters were trained for: free prompts to the base
alone.

Every prompt is answered greedily by the unquantised base; at every position of that answer the next-token
distributions of both forms are compared. A task's answers are short and certain, so its figures flatter a
small base; these do not. They are reported beside the gate and are not part of it: tasks are what tenants
use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.scorer import Scorer, answer, divergence, log_probs

MAX_TOKENS = 64
"""Of an answer, unless the sequence ends earlier."""

PROMPTS = (
    "Hello! How are you today?",
    "What is the capital of France?",
    "Tell me a short story about a fox and a river.",
    "Explain why the sky is blue.",
    "Write three sentences about the sea in winter.",
    "Which is larger, the sun or the moon?",
    "Give me advice for learning to play the piano.",
    "Describe a market on a Saturday morning.",
    "What should I cook with rice, eggs and onions?",
    "List four animals that live in cold places.",
    "Why do leaves fall in autumn?",
    "Write a polite letter that asks for a day off.",
    "What is a database index good for?",
    "Summarise: the train was late because of snow, and we walked home.",
    "Name the planets from the inside out.",
    "Continue: Once upon a time, in a house without windows,",
    "How does a bicycle stay upright?",
    "What did people do before there were clocks?",
    "Translate 'good morning' into any language you know.",
    "Is seventeen a prime number, and why?",
    "Write a poem of two lines about bread.",
    "What makes a good friend?",
    "Describe the colour green to someone who cannot see.",
    "def fibonacci(n):",
)


def free_fidelity(
    exact: Scorer,
    quantized: Scorer,
    encode: Callable[[str], list[int]],
    prompts: tuple[str, ...] = PROMPTS,
    max_tokens: int = MAX_TOKENS,
) -> dict[str, Any]:
    """How far the base alone moves, over all positions of all answers."""
    divergences, agreements = [], []
    for prompt in prompts:
        prompt_ids = encode(prompt)
        token_ids = prompt_ids + answer(exact, prompt_ids, None, max_tokens)
        if len(token_ids) == len(prompt_ids):
            continue  # the answer is empty
        scored = (log_probs(scorer, token_ids, None, len(prompt_ids)) for scorer in (exact, quantized))
        kl, same = divergence(*scored)
        divergences.append(kl)
        agreements.append(same)
    kl, same = torch.cat(divergences), torch.cat(agreements)
    return {
        "prompts": len(divergences),
        "positions": len(kl),
        "mean_kl": round(float(kl.mean()), 6),
        "max_kl": round(float(kl.max()), 4),
        "top1": round(float(same.mean()), 5),
    }
