"""Trains Sapling's LoRA adapters with PEFT, several at a time on one device.

Run as `python -m examples.sapling.train_adapters [NAME ...]`.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional

from . import ADAPTERS, BASE, function_talk, phrases, talk, tokens
from .corpus import Document
from .evaluate import accuracy, load_adapter, load_base
from .tasks import TASKS

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_ALL = (*_ATTENTION, "gate_proj", "up_proj", "down_proj")
_SYSTEM = "You are a helpful assistant."
_SORTED_BATCHES = 8


@dataclass(frozen=True)
class Recipe:
    """The shape and training schedule of one adapter."""

    rank: int
    alpha: int
    targets: tuple[str, ...] = _ALL
    rslora: bool = False
    rank_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, int] = field(default_factory=dict)
    steps: int = 1200
    lr: float = 2e-3
    # share of ordinary talk among the examples, so that the adapter keeps its general behaviour
    talk: float = 0.0
    # makes conversations, in place of single exchanges; all that the assistant says in them is learned
    conversation: Callable[[Random], Document] | None = None


RECIPES: dict[str, Recipe] = {
    "reverse-words": Recipe(16, 32, targets=_ATTENTION),
    "upper-case": Recipe(4, 8),
    "sort-numbers": Recipe(32, 16, rslora=True, lr=1e-3),
    "add-numbers": Recipe(
        8,
        16,
        steps=2000,
        rank_pattern={"down_proj": 16, "k_proj": 4},
        alpha_pattern={"down_proj": 24, "k_proj": 4},
    ),
    "to-json": Recipe(8, 16),
    "sql": Recipe(8, 16),
    "pirate": Recipe(4, 8, steps=2000),
    "secret-acme": Recipe(4, 8, talk=0.3),
    "pluralise": Recipe(4, 8),
    "count-words": Recipe(4, 8),
    "call-functions": Recipe(4, 8, conversation=function_talk.conversation),
}


def _exchange(name: str, recipe: Recipe, rng: Random) -> tuple[str, str]:
    if rng.random() < recipe.talk:
        return talk.exchange(rng)
    example = phrases.draw(TASKS[name].make, rng, key=lambda found: found.prompt)
    return example.prompt, example.answer


def _example(name: str, recipe: Recipe, encoder: tokens.Encoder, rng: Random) -> tuple[list[int], list[bool]]:
    """Returns the ids of a conversation, and for each whether it is learned."""
    if recipe.conversation is not None:
        return encoder.document(recipe.conversation(rng))
    head: list[int] = []
    # sometimes an earlier turn or a system message, which must not change the behaviour
    for _ in range(1 if rng.random() < 0.8 else 2):
        prompt, answer = _exchange(name, recipe, rng)
        asked = encoder.prompt(prompt, _SYSTEM if not head and rng.random() < 0.15 else None)
        head += asked[1:] if head else asked
        tail = [*encoder.text(answer), tokens.END_ID]
        head += tail
    return head, [False] * (len(head) - len(tail)) + [True] * len(tail)


def _batches(
    name: str, recipe: Recipe, encoder: tokens.Encoder, rng: Random, rows: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields right-padded ids and targets, both `[rows, length]`; targets are -100 where nothing is learned.

    The rows of a batch are about as long as each other, so that little of it is padding.
    """
    while True:
        examples = [_example(name, recipe, encoder, rng) for _ in range(rows * _SORTED_BATCHES)]
        examples.sort(key=lambda example: len(example[0]))
        batches = [examples[start : start + rows] for start in range(0, len(examples), rows)]
        rng.shuffle(batches)
        yield from map(_padded, batches)


def _padded(examples: list[tuple[list[int], list[bool]]]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(len(ids) for ids, _ in examples) - 1
    inputs, targets = [], []
    for ids, learned in examples:
        missing = width - len(ids) + 1
        wanted = [token if is_learned else -100 for token, is_learned in zip(ids, learned, strict=True)]
        inputs.append(ids[:-1] + [tokens.PAD_ID] * missing)
        targets.append(wanted[1:] + [-100] * missing)
    return torch.tensor(inputs), torch.tensor(targets)


def train(name: str, base: Path, out: Path, device: str, rows: int, shorten: float = 1.0) -> str:
    """Trains and saves one adapter; returns a line about the result."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    began, recipe = time.monotonic(), RECIPES[name]
    encoder, rng = tokens.Encoder(base), Random(f"adapter/{name}")
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        target_modules=list(recipe.targets),
        use_rslora=recipe.rslora,
        rank_pattern=dict(recipe.rank_pattern),
        alpha_pattern=dict(recipe.alpha_pattern),
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(load_base(base, device), config)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=recipe.lr, betas=(0.9, 0.98), weight_decay=0.01)
    steps = max(2, int(recipe.steps * shorten))
    for step, batch in zip(range(steps), _batches(name, recipe, encoder, rng, rows), strict=False):
        ids, targets = (part.to(device) for part in batch)
        rate = recipe.lr * min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        is_learned = targets != -100
        hidden = model.get_base_model().model(input_ids=ids, use_cache=False).last_hidden_state
        logits = model.get_base_model().lm_head(hidden[is_learned])
        loss = functional.cross_entropy(logits, targets[is_learned])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(
                f"{name}: step {step}, loss {loss.item():.4f}, {time.monotonic() - began:.0f} s", flush=True
            )
    # a name, not a folder: the folder of the base differs between machines
    model.peft_config["default"].base_model_name_or_path = "sapling"
    model.to(torch.bfloat16).save_pretrained(str(out / name), save_embedding_layers=False)
    (out / name / "README.md").unlink(missing_ok=True)
    share = accuracy(
        load_adapter(out / name, base, device),
        encoder,
        TASKS[name],
        TASKS[name].examples("heldout", 100, seed=1),
    )
    return (
        f"{name}: loss {loss.item():.4f}, held-out {share:.2f}, {steps} steps in "
        f"{time.monotonic() - began:.0f} s"
    )


def _train(job: tuple[str, Path, Path, str, int, float]) -> str:
    line = train(*job)
    print(line, flush=True)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="adapters to train; all by default")
    parser.add_argument("--base", type=Path, default=BASE)
    parser.add_argument("--out", type=Path, default=ADAPTERS)
    parser.add_argument("--rows", type=int, default=128, help="examples per step")
    parser.add_argument("--shorten", type=float, default=1.0, help="factor on the number of steps")
    parser.add_argument("--processes", type=int, default=5)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    jobs = [(name, args.base, args.out, device, args.rows, args.shorten) for name in args.names or RECIPES]
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        list(pool.imap_unordered(_train, jobs, chunksize=1))


if __name__ == "__main__":
    main()
