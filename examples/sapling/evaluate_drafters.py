"""Measures Sapling's draft adapters on held-out prompts: which guesses are right, and tokens per step.

Adds the table `drafters` to `evaluation.json`. Run as `python -m examples.sapling.evaluate_drafters`. It is
plain PyTorch with transformers and PEFT, on one thread; nothing of the engine takes part.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import DRAFTERS
from .draft_contexts import BASE_TARGET, TARGETS, Context, Targets, answered, heldout_prompts
from .drafters import Drafter, decode_anchors, guess_logits, load_drafter, packed
from .evaluate import EVALUATION

MAX_ANSWER = 160
SEED = 5
"""Differs from the seeds of the other tables and of the calibration samples."""
_ROWS = 8


@torch.inference_mode()
def num_right(target: nn.Module, drafter: Drafter, contexts: Sequence[Context]) -> list[dict[int, int]]:
    """Returns for each context, by position of the last known token, how many leading guesses are right."""
    found: list[dict[int, int]] = []
    for start in range(0, len(contexts), _ROWS):
        chosen = contexts[start : start + _ROWS]
        anchors = [list(decode_anchors(context)) for context in chosen]
        if not any(anchors):
            found += [{} for _ in chosen]
            continue
        batch = packed(chosen, anchors, drafter.num_ahead)
        is_right = guess_logits(target, drafter, batch).argmax(-1) == batch.wanted
        leading = is_right.long().cumprod(-1).sum(-1).tolist()
        for own, row in zip(anchors, leading, strict=True):
            found.append(dict(zip(own, row[: len(own)], strict=True)))
    return found


def num_steps(context: Context, right: dict[int, int], num_ahead: int) -> int:
    """Returns how many steps give the answer, not counting the prompt's step, which gives the first token.

    A step computes the last known token, the guesses of the step before as its drafts, and new placeholders
    behind them. Its own draws end at the first draft that differs; only if none does, the new guesses are of
    use.
    """
    last, steps, has_drafts = context.num_prompt_tokens, 0, False
    while last < len(context.ids) - 1:
        accepted = min(right.get(last - 1, 0), num_ahead) if has_drafts else 0
        has_drafts = accepted == num_ahead or not has_drafts
        last, steps = last + 1 + accepted, steps + 1
    return steps


def measure(target: nn.Module, drafter: Drafter, contexts: Sequence[Context]) -> dict[str, Any]:
    """Returns the acceptance by position ahead, and tokens per step by number of placeholders.

    The acceptance at a position is the share of right guesses among those whose earlier guesses are right.
    """
    right = num_right(target, drafter, contexts)
    reached, accepted = [0] * drafter.num_ahead, [0] * drafter.num_ahead
    for context, own in zip(contexts, right, strict=True):
        for anchor, leading in own.items():
            possible = min(drafter.num_ahead, len(context.ids) - 2 - anchor)
            for position in range(min(leading + 1, possible)):
                reached[position] += 1
                accepted[position] += position < leading
    num_tokens = sum(len(context.ids) - context.num_prompt_tokens - 1 for context in contexts)
    return {
        "accepted_by_position": [
            round(share / of, 3) if of else None for share, of in zip(accepted, reached, strict=True)
        ],
        "tokens_per_step": [
            round(
                num_tokens
                / max(1, sum(num_steps(one, own, ahead) for one, own in zip(contexts, right, strict=True))),
                2,
            )
            for ahead in range(1, drafter.num_ahead + 1)
        ],
    }


def evaluate(names: Sequence[str], drafters: Path, num_prompts: int, seed: int) -> dict[str, Any]:
    """Returns the table of all draft adapters below `drafters`, for the targets `names`."""
    targets, general = Targets(names), load_drafter(drafters / BASE_TARGET)
    rows: dict[str, Any] = {}
    for name in names:
        model, asked = targets.model(name), heldout_prompts(name, num_prompts, seed)
        measured = {"general": general}
        if name != BASE_TARGET and (drafters / name).is_dir():
            measured["own"] = load_drafter(drafters / name)
        rows[name] = {}
        for way, temperature in (("greedy", 0.0), ("temperature_1", 1.0)):
            torch.manual_seed(seed)
            contexts = answered(model, asked, MAX_ANSWER, temperature)
            num_tokens = sum(len(context.ids) - context.num_prompt_tokens for context in contexts)
            rows[name][way] = {
                "tokens_per_answer": round(num_tokens / len(contexts), 1),
                **{kind: measure(model, drafter, contexts) for kind, drafter in measured.items()},
            }
        print(name, json.dumps(rows[name]), flush=True)
    return {
        "hardware": platform.machine() + " CPU",
        "precision": "bfloat16 weights in float32",
        "prompts_per_target": num_prompts,
        "seed": seed,
        "num_ahead": general.num_ahead,
        "targets": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="targets; the base and all adapters by default")
    parser.add_argument("--drafters", type=Path, default=DRAFTERS)
    parser.add_argument("--n", type=int, default=100, help="held-out prompts per target")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, default=EVALUATION)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = evaluate(args.names or TARGETS, args.drafters, args.n, args.seed)
    kept = json.loads(args.out.read_text()) if args.out.exists() else {}
    args.out.write_text(json.dumps(kept | {"drafters": table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
