"""Measures what quantising costs in quality: the gate a base passes before it is quantised by default.

    python -m benchmarks.quality --quantization int8 --out F
    python -m benchmarks.quality --variants fp8,fp8/fp8,fp8/auto/fp8,int4 --random-shape random-300m --out F

scores held-out conversations of every Sapling task, with the task's adapter and without, on the unquantised
base and on each variant (base/keys and values/adapters): Kullback-Leibler divergence of the next-token
distributions, how often the likeliest token is the same, negative log-likelihood of the right answer, and
exact-match accuracy of greedy answers; then the base alone on free prompts (`benchmarks.quality_free`). With
`--random-shape` also a larger model of random weights that have a trained model's tails
(`benchmarks.random_base`): there only divergence means anything. Exit status 1 when the gate fails for a
variant of Sapling.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from adapters.packing import pack
from benchmarks.quality_free import free_fidelity
from benchmarks.quality_random import random_rows
from benchmarks.random_adapters import STORED
from benchmarks.report import write_report
from benchmarks.scorer import EXACT, Scorer, Variant, divergence, make_scorer, scored_answer
from benchmarks.shapes import SHAPES
from engine.lora.artifact import PackedAdapter, artifact_path
from engine.lora.manifest import Dtype
from engine.model.config import load_config
from engine.model.loading import load_model
from engine.model.weights import base_digest
from examples.sapling.tasks import TASKS, Example
from tokenization.codec import TextCodec

SAPLING = Path(__file__).resolve().parent.parent / "examples/sapling/weights"

MAX_KL = 0.02
"""Nats per token, mean over answers."""
MIN_TOP1 = 0.98
MAX_ACCURACY_LOSS = 0.02
"""Of any one adapter."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One question with its right answer, as token ids."""

    example: Example
    token_ids: list[int]
    answer_start: int


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How far one task's answers move under quantisation; `adapter` None is the base alone."""

    task: str
    adapter: str | None
    kl: float
    max_kl: float
    top1: float
    nll: float
    nll_quantized: float
    accuracy: float
    accuracy_quantized: float


@dataclass(frozen=True, slots=True)
class Answered:
    """What one base makes of one conversation."""

    log_probs: Tensor
    """Of the right answer's positions, on the host."""
    right: bool
    """The greedy answer is accepted."""


class Bench:
    """The held-out conversations, the unquantised base, and the variant it is compared with."""

    def __init__(
        self, base: Path, adapters: Path, variant: str | Variant, device: torch.device | str = "cpu"
    ) -> None:
        self.codec = TextCodec.load(base)
        self._tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
        self._base, self._adapters, self._device = base, adapters, device
        self.names = sorted(folder.name for folder in adapters.iterdir() if folder.name in TASKS)
        self.exact = self._scorer(EXACT)
        self._known: dict[tuple[str | None, tuple[int, ...]], Answered] = {}
        self.use(variant)

    def use(self, variant: str | Variant) -> None:
        """Compare with this one from now on."""
        self.variant = Variant.parse(variant) if isinstance(variant, str) else variant
        self.quantized = self._scorer(self.variant)

    def conversations(self, task: str, count: int) -> list[Conversation]:
        found = []
        for example in TASKS[task].examples("heldout", count):
            prompt_ids = self._encode(example.prompt)
            answer_ids = self._tokenizer.encode(example.answer, add_special_tokens=False).ids
            found.append(Conversation(example, prompt_ids + answer_ids, len(prompt_ids)))
        return found

    def fidelity(self, task: str, adapter: str | None, conversations: Sequence[Conversation]) -> Fidelity:
        divergences, agreements, nlls, nlls_quantized = [], [], [], []
        right = right_quantized = 0
        for conversation in conversations:
            targets = torch.tensor(conversation.token_ids[conversation.answer_start :])[:, None]
            exact = self._exactly(task, adapter, conversation)
            moved = self._answered(self.quantized, task, adapter, conversation)
            kl, same = divergence(exact.log_probs, moved.log_probs)
            divergences.append(kl)
            agreements.append(same)
            nlls.append(-exact.log_probs.gather(1, targets)[:, 0])
            nlls_quantized.append(-moved.log_probs.gather(1, targets)[:, 0])
            right += exact.right
            right_quantized += moved.right
        return Fidelity(
            task,
            adapter,
            kl=_mean(divergences),
            max_kl=float(torch.cat(divergences).max()),
            top1=_mean(agreements),
            nll=_mean(nlls),
            nll_quantized=_mean(nlls_quantized),
            accuracy=right / len(conversations),
            accuracy_quantized=right_quantized / len(conversations),
        )

    def free_fidelity(self) -> dict[str, Any]:
        """Of the base alone, outside the tasks: as a message of a chat, and as a text to complete."""
        forms = {"chat": self._encode, "completion": self.encode_text}
        return {form: free_fidelity(self.exact, self.quantized, encode) for form, encode in forms.items()}

    def _exactly(self, task: str, adapter: str | None, conversation: Conversation) -> Answered:
        """The unquantised base's answer does not change with the variant."""
        key = adapter, tuple(conversation.token_ids)
        if key not in self._known:
            self._known[key] = self._answered(self.exact, task, adapter, conversation)
        return self._known[key]

    def _answered(
        self, scorer: Scorer, task: str, adapter: str | None, conversation: Conversation
    ) -> Answered:
        token_ids, start = conversation.token_ids, conversation.answer_start
        scored, answer_ids = scored_answer(scorer, token_ids, adapter, start, len(token_ids) - start + 16)
        text = self.codec.vocabulary.decode(answer_ids).decode("utf-8", "replace")
        return Answered(scored, TASKS[task].check(conversation.example, text))

    def _scorer(self, variant: Variant) -> Scorer:
        device = torch.device(self._device)
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        model = load_model(self._base, variant.quantization, dtype, device)
        packed = _pack_all(self._base, self._adapters, self.names, STORED[variant.adapter_dtype])
        return make_scorer(model, packed, model.config.max_position, variant.kv_dtype)

    def encode_text(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def _encode(self, prompt: str) -> list[int]:
        chat = self.codec.render_chat([{"role": "user", "content": prompt}])
        return asyncio.run(self.codec.encode_chat(chat))


def passes(rows: Sequence[Fidelity]) -> list[str]:
    """Returns why the gate fails; empty when it passes. Rows with an adapter count: they are what tenants
    use.
    """
    why = []
    for row in rows:
        if row.adapter is None:
            continue
        if not row.kl <= MAX_KL:  # not a number is over it, too
            why.append(f"{row.task}: KL {row.kl:.4f} nats is over {MAX_KL}")
        if row.top1 < MIN_TOP1:
            why.append(f"{row.task}: top-1 agreement {row.top1:.4f} is under {MIN_TOP1}")
        if row.accuracy - row.accuracy_quantized > MAX_ACCURACY_LOSS:
            why.append(f"{row.task}: accuracy falls from {row.accuracy:.3f} to {row.accuracy_quantized:.3f}")
    return why


def summary(model: str, variant: Variant, rows: Sequence[Fidelity]) -> dict[str, Any]:
    """One line of the table: the mean over adapters, but the largest divergence of any position."""
    sold = [row for row in rows if row.adapter is not None]
    why = passes(rows)
    return {
        "model": model,
        **asdict(variant),
        "mean_kl": round(sum(row.kl for row in sold) / len(sold), 6),
        "max_kl": round(max(row.max_kl for row in sold), 4),
        "top1": round(sum(row.top1 for row in sold) / len(sold), 5),
        "accuracy": round(sum(row.accuracy_quantized for row in sold) / len(sold), 4),
        "accuracy_exact": round(sum(row.accuracy for row in sold) / len(sold), 4),
        "gate": {"passed": not why, "why_not": why},
    }


def _pack_all(base: Path, adapters: Path, names: Sequence[str], dtype: Dtype) -> dict[str, PackedAdapter]:
    config, digest = load_config(base), base_digest(base)
    packed = {}
    with TemporaryDirectory() as folder:
        for name in names:
            ref = pack(adapters / name, config, digest, Path(folder), dtype)
            packed[name] = PackedAdapter.read(artifact_path(Path(folder), ref.digest), ref.digest)
    return packed


def _mean(parts: Sequence[Tensor]) -> float:
    return float(torch.cat(list(parts)).mean())


def _scored(bench: Bench, num_examples: int, adapters_only: bool) -> list[Fidelity]:
    """Every task with its adapter and, unless told, without; printed as they come."""
    print(
        f"{bench.variant}\n{'task':<16}{'adapter':<10}{'KL nats':>9}{'top-1':>8}"
        f"{'NLL':>8}{'NLL q':>8}{'right':>8}{'right q':>8}"
    )
    rows = []
    for task in bench.names:
        conversations = bench.conversations(task, num_examples)
        for adapter in (task,) if adapters_only else (task, None):
            row = bench.fidelity(task, adapter, conversations)
            rows.append(row)
            print(
                f"{task:<16}{'yes' if adapter else 'no':<10}{row.kl:>9.5f}{row.top1:>8.4f}{row.nll:>8.4f}"
                f"{row.nll_quantized:>8.4f}{row.accuracy:>8.3f}{row.accuracy_quantized:>8.3f}",
                flush=True,
            )
    return rows


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", type=Path, default=SAPLING / "base")
    parser.add_argument("--adapters", type=Path, default=SAPLING / "adapters")
    parser.add_argument("--quantization", default="int8", help="of the base, when there are no --variants")
    parser.add_argument("--variants", help="BASE[/KV[/ADAPTERS]],... such as fp8,fp8/fp8,fp8/auto/fp8")
    parser.add_argument("--examples", type=int, default=25, help="held-out conversations per task")
    parser.add_argument("--adapters-only", action="store_true", help="leave out the base without adapters")
    parser.add_argument("--random-shape", choices=list(SHAPES), help="also a model of random weights")
    parser.add_argument("--random-tokens", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    variants = [Variant.parse(text) for text in (options.variants or options.quantization).split(",")]
    torch.set_num_threads(1)
    name = options.base.resolve().parts[-3] if options.base == SAPLING / "base" else options.base.name
    bench = Bench(options.base, options.adapters, variants[0], options.device)
    rows: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for variant in variants:
        if variant != bench.variant:
            bench.use(variant)
        scored = _scored(bench, options.examples, options.adapters_only)
        rows += [{"variant": str(variant), **asdict(row)} for row in scored]
        free = bench.free_fidelity()
        for form, row in free.items():
            print(f"free prompts, {form}: KL {row['mean_kl']:.5f} nats, top-1 {row['top1']:.4f}", flush=True)
        lines.append(summary(name, variant, scored) | {"free": free})
    if options.random_shape:
        lines += random_rows(options.random_shape, variants, options.random_tokens, options.device)
    why = [f"{line['model']} {why}" for line in lines for why in line.get("gate", {}).get("why_not", [])]
    figures = {
        "base": name,
        "device": options.device,
        "examples_per_task": options.examples,
        "gate": {
            "max_kl": MAX_KL,
            "min_top1": MIN_TOP1,
            "max_accuracy_loss": MAX_ACCURACY_LOSS,
            "passed": not why,
            "why_not": why,
        },
        "summary": lines,
        "rows": rows,
    }
    write_report(options.out, figures)
    print("gate passed" if not why else "gate failed:\n  " + "\n  ".join(why))
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
