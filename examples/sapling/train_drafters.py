"""Trains Sapling's draft adapters, on the base and its adapters as they are.

Run as `python -m examples.sapling.train_drafters [NAME ...]`. The draft adapter `base` learns from answers of
the base and of all adapters, any other from those of the adapter of its name alone. On one thread of one kind
of CPU the same arguments give the same weights.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional

from . import BASE, DRAFTERS, tokens
from .draft_contexts import BASE_TARGET, Context, Targets, answered, batches, prompts
from .drafters import CONFIG, NOTHING, Drafter, guess_logits, packed
from .evaluate import load_base
from .tasks import TASKS

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_ALL = (*_ATTENTION, "gate_proj", "up_proj", "down_proj")
PLACEHOLDER_ID = tokens.PAD_ID
"""No text contains it, so it has no meaning to lose."""
NUM_AHEAD = 4
_MAX_ANSWER = 112
_MAX_GROUPS = 24
"""Groups of placeholders of one context in a step; long answers have some of theirs, drawn anew each time."""
_SAMPLED = 0.25
"""The share of answers that are sampled, at temperature 1; the others are greedy."""


@dataclass(frozen=True)
class Recipe:
    """The shape and training schedule of one draft adapter."""

    targets: tuple[str, ...]
    """Whose answers it learns from; one that is named twice counts twice, in answers and in steps."""
    rank: int = 8
    alpha: int = 16
    contexts: int = 768
    """Answers to learn from, of each target."""
    steps: int = 800
    lr: float = 3e-3


RECIPES: dict[str, Recipe] = {
    # what the base says differs most
    BASE_TARGET: Recipe((*[BASE_TARGET] * 4, *TASKS), steps=2000),
    "pirate": Recipe(("pirate",), contexts=2048),
    "upper-case": Recipe(("upper-case",), contexts=2048, steps=500),
}


def contexts(targets: Targets, name: str, count: int) -> list[Context]:
    """Returns `count` answers of one target to learn from, some of them sampled."""
    torch.manual_seed(0)
    model = targets.model(name)
    asked = list(islice(prompts(name, Random(f"drafter/{name}")), count))
    num_sampled = round(count * _SAMPLED)
    return [
        *answered(model, asked[num_sampled:], _MAX_ANSWER),
        *answered(model, asked[:num_sampled], _MAX_ANSWER, temperature=1.0),
    ]


def _anchors(context: Context, rng: Random) -> list[int]:
    """Returns anchors from the last token of the prompt on, so that a prompt's last step may guess, too."""
    possible = range(context.num_prompt_tokens - 1, len(context.ids) - 2)
    return sorted(rng.sample(possible, min(_MAX_GROUPS, len(possible))))


def _batches(
    recipe: Recipe, learned: dict[str, list[Context]], rows: int, rng: Random
) -> Iterator[tuple[str, list[Context]]]:
    """Yields batches of contexts that all have the same target, the targets in turn."""
    sources = {
        name: batches([one for one in learned[name] if _anchors(one, rng)], rows, rng)
        for name in dict.fromkeys(recipe.targets)
    }
    while True:
        for name in rng.sample(recipe.targets, len(recipe.targets)):
            yield name, next(sources[name])


def train(
    name: str, targets: Targets, learned: dict[str, list[Context]], out: Path, rows: int, shorten: float = 1.0
) -> None:
    """Trains and saves one draft adapter from the contexts of its targets."""
    began, recipe, rng = time.monotonic(), RECIPES[name], Random(f"drafter/{name}/batches")
    torch.manual_seed(0)
    config = LoraConfig(
        r=recipe.rank, lora_alpha=recipe.alpha, target_modules=list(_ALL), task_type="CAUSAL_LM"
    )
    model = get_peft_model(load_base(BASE), config)
    drafter = Drafter(model.get_base_model(), PLACEHOLDER_ID, NUM_AHEAD)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=recipe.lr, betas=(0.9, 0.98), weight_decay=0.01)
    steps = max(2, int(recipe.steps * shorten))
    for step, (target, chosen) in zip(range(steps), _batches(recipe, learned, rows, rng), strict=False):
        rate = recipe.lr * min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = packed(chosen, [_anchors(context, rng) for context in chosen], NUM_AHEAD)
        logits = guess_logits(targets.model(target), drafter, batch)
        loss = functional.cross_entropy(logits.flatten(0, 2), batch.wanted.flatten(), ignore_index=NOTHING)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            is_wanted = batch.wanted != NOTHING
            right = ((logits.argmax(-1) == batch.wanted) & is_wanted).sum((0, 1)) / is_wanted.sum((0, 1))
            shown = " ".join(f"{share:.2f}" for share in right.tolist())
            print(
                f"{name}: step {step}, {target}, loss {loss.item():.3f}, right {shown}, "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
    # a name, not a folder: the folder of the base differs between machines
    model.peft_config["default"].base_model_name_or_path = "sapling"
    model.to(torch.bfloat16).save_pretrained(str(out / name), save_embedding_layers=False)
    (out / name / "README.md").unlink(missing_ok=True)
    settings = {"placeholder_token_id": PLACEHOLDER_ID, "num_ahead": NUM_AHEAD}
    (out / name / CONFIG).write_text(json.dumps(settings, indent=2) + "\n")
    print(f"{name}: {steps} steps in {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="draft adapters to train; all by default")
    parser.add_argument("--out", type=Path, default=DRAFTERS)
    parser.add_argument("--rows", type=int, default=16, help="contexts per step")
    parser.add_argument("--shorten", type=float, default=1.0, help="factor on steps and contexts")
    args = parser.parse_args()
    torch.set_num_threads(1)
    recipes = {name: RECIPES[name] for name in args.names or RECIPES}
    targets = Targets(list(dict.fromkeys(one for recipe in recipes.values() for one in recipe.targets)))
    learned: dict[str, list[Context]] = {}
    began = time.monotonic()
    for name, recipe in recipes.items():
        for target in dict.fromkeys(recipe.targets):
            count = int(recipe.contexts * recipe.targets.count(target) * args.shorten)
            if len(learned.get(target, [])) < count:
                learned[target] = contexts(targets, target, count)
                print(f"answers of {target}: {time.monotonic() - began:.0f} s", flush=True)
        train(name, targets, learned, args.out, args.rows, args.shorten)


if __name__ == "__main__":
    main()
