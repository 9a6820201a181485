"""Measures Sapling: held-out accuracy of every adapter, of the base without it, and with rounded weights.

Writes `evaluation.json`. Run as `python -m examples.sapling.evaluate`.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from . import ADAPTERS, BASE, skills, tokens
from .tasks import TASKS, Example, Task

EVALUATION = Path(__file__).parent / "evaluation.json"
MAX_NEW_TOKENS = 64


def load_base(folder: Path = BASE, device: str = "cpu") -> PreTrainedModel:
    """Loads the saved base; its bfloat16 weights are held in float32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().to(device)


def load_adapter(folder: Path, base: Path = BASE, device: str = "cpu", rounded: bool = False) -> PeftModel:
    """Loads the base with one adapter, in float32; `rounded` rounds the base's linears to integers."""
    model = load_base(base, device)
    if rounded:
        round_linears(model)
    return PeftModel.from_pretrained(model, str(folder)).float().eval().to(device)


def round_linears(model: PreTrainedModel) -> None:
    """Rounds the weights of all seven linears to 8 bits per row, and their inputs to 7 bits per token."""

    def nearest(x: torch.Tensor, levels: int) -> torch.Tensor:
        step = x.abs().amax(dim=-1, keepdim=True).clamp_min(1e-8) / levels
        return (x / step).round() * step

    for name, module in model.model.named_modules():
        if isinstance(module, nn.Linear) and name.endswith("_proj"):
            module.weight.data = nearest(module.weight.data, 127)
            module.register_forward_pre_hook(lambda _, inputs: (nearest(inputs[0], 63), *inputs[1:]))


@torch.inference_mode()
def answers(
    model: nn.Module,
    encoder: tokens.Encoder,
    prompts: Sequence[str],
    max_new_tokens: int = MAX_NEW_TOKENS,
    system: str | None = None,
) -> list[str]:
    """Returns the greedy answers to user messages, computed as one left-padded batch."""
    device = next(model.parameters()).device
    rows = [encoder.prompt(prompt, system) for prompt in prompts]
    width = max(map(len, rows))
    ids = torch.tensor([[tokens.PAD_ID] * (width - len(row)) + row for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    out = model.generate(input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=max_new_tokens)
    texts = []
    for row in out[:, width:].tolist():
        stop = next((i for i, token in enumerate(row) if token in (tokens.END_ID, tokens.EOS_ID)), len(row))
        texts.append(encoder.decode(row[:stop]))
    return texts


def accuracy(model: nn.Module, encoder: tokens.Encoder, task: Task, examples: Sequence[Example]) -> float:
    """Returns the share of examples that the model answers correctly."""
    found = answers(model, encoder, [example.prompt for example in examples])
    return sum(task.check(example, text) for example, text in zip(examples, found, strict=True)) / len(
        examples
    )


def told_skills(model: nn.Module, encoder: tokens.Encoder, n: int = 100) -> dict[str, float]:
    """Returns the base's accuracy on exercises with an instruction, by the first instruction of each
    skill.
    """
    shares = {}
    for skill in skills.SKILLS:
        rng = Random(f"told/{skill.instructions[0]}")
        drawn = [skill.make(rng) for _ in range(n)]
        found = answers(model, encoder, [f"{skill.instructions[0]}: {payload}" for payload, _ in drawn])
        shares[skill.instructions[0]] = (
            sum(text == right for text, (_, right) in zip(found, drawn, strict=True)) / n
        )
    return shares


def evaluate(base: Path, adapters: Path, n: int, seed: int, device: str) -> dict[str, object]:
    """Returns the table of all adapters found below `adapters`, on `n` held-out prompts per task."""
    torch.set_float32_matmul_precision("highest")
    encoder, bare, bare_rounded = tokens.Encoder(base), load_base(base, device), load_base(base, device)
    round_linears(bare_rounded)
    rows = {}
    for name, task in TASKS.items():
        examples = task.examples("heldout", n, seed)
        adapted = load_adapter(adapters / name, base, device)
        config = adapted.peft_config["default"]
        rows[name] = {
            "rank": config.r,
            "targets": len(config.target_modules),
            "with_adapter": round(accuracy(adapted, encoder, task, examples), 4),
            "without_adapter": round(accuracy(bare, encoder, task, examples), 4),
            "with_adapter_int8": round(
                accuracy(load_adapter(adapters / name, base, device, True), encoder, task, examples), 4
            ),
            "without_adapter_int8": round(accuracy(bare_rounded, encoder, task, examples), 4),
            "samples": [
                {"prompt": prompt, "answer": answer}
                for prompt, answer in zip(
                    task.showcase, answers(adapted, encoder, task.showcase), strict=True
                )
            ],
        }
        print(name, {key: value for key, value in rows[name].items() if key != "samples"}, flush=True)
    hardware = torch.cuda.get_device_name() if device == "cuda" else platform.machine() + " CPU"
    return {
        "hardware": hardware,
        "precision": "bfloat16 weights in float32, greedy",
        "examples_per_task": n,
        "seed": seed,
        "tasks": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=BASE)
    parser.add_argument("--adapters", type=Path, default=ADAPTERS)
    parser.add_argument("--n", type=int, default=500, help="held-out prompts per task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=EVALUATION)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    table = evaluate(args.base, args.adapters, args.n, args.seed, device)
    # what evaluate_drafters wrote stays
    drafters = json.loads(args.out.read_text()).get("drafters") if args.out.exists() else None
    args.out.write_text(json.dumps(table | ({"drafters": drafters} if drafters else {}), indent=2) + "\n")


if __name__ == "__main__":
    main()
