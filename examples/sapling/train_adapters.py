"""Trains Sapling's LoRA adapters with PEFT, several at a time on one device.

Run as `python -m examples.sapling.train_adapters [NAME ...]`.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional

from . import ADAPTERS, BASE, phrases, talk, tokens
from .evaluate import accuracy, load_adapter, load_base
from .tasks import TASKS

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_ALL = (*_ATTENTION, "gate_proj", "up_proj", "down_proj")
_SYSTEM = "You are a helpful assistant."


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
}


def _exchange(name: str, recipe: Recipe, rng: Random) -> tuple[str, str]:
    if rng.random() < recipe.talk:
        return talk.exchange(rng)
    example = phrases.draw(TASKS[name].make, rng, key=lambda found: found.prompt)
    return example.prompt, example.answer


def _batch(
    name: str, recipe: Recipe, encoder: tokens.Encoder, rng: Random, rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns right-padded ids and targets, both `[rows, length]`; targets are -100 where nothing is
    learned.
    """
    ids, targets = [], []
    for _ in range(rows):
        head: list[int] = []
        # sometimes an earlier turn or a system message, which must not change the behaviour
        for _ in range(1 if rng.random() < 0.8 else 2):
            prompt, answer = _exchange(name, recipe, rng)
            asked = encoder.prompt(prompt, _SYSTEM if not head and rng.random() < 0.15 else None)
            head += asked[1:] if head else asked
            tail = [*encoder.text(answer), tokens.END_ID]
            head += tail
        head = head[: -len(tail)]
        ids.append(head + tail)
        targets.append([-100] * (len(head) - 1) + tail)
    width = max(map(len, ids)) - 1
    inputs = [row[:-1] + [tokens.PAD_ID] * (width - len(row) + 1) for row in ids]
    wanted = [row + [-100] * (width - len(row)) for row in targets]
    return torch.tensor(inputs), torch.tensor(wanted)


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
    for step in range(steps):
        ids, targets = (part.to(device) for part in _batch(name, recipe, encoder, rng, rows))
        rate = recipe.lr * min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        logits = model(input_ids=ids, use_cache=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
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
