"""What quantising the base costs in quality: the gate a base passes before it is quantised by default.

`python -m benchmarks.quality --quantization int8 --out F` scores held-out conversations of every Sapling
task, with the task's adapter and without, on the unquantised base and on the quantised one: Kullback-Leibler
divergence of the next-token distributions, how often the likeliest token is the same, negative log-likelihood
of the right answer, and exact-match accuracy of greedy answers. Exit status 1 when the gate fails.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from adapters.packing import pack
from api.text import TextCodec
from benchmarks.report import write_report
from engine.lora.artifact import PackedAdapter, artifact_path
from engine.lora.pool import AdapterPool
from engine.model.cache import KVCache
from engine.model.config import load_config
from engine.model.model import Model, load_model
from engine.model.weights import base_digest
from examples.sapling.tasks import TASKS, Example
from kernels.attention import AttentionMetadata
from kernels.lora import LoraContext

SAPLING = Path(__file__).resolve().parent.parent / "examples/sapling/weights"
BLOCK_SIZE = 16

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
    top1: float
    nll: float
    nll_quantized: float
    accuracy: float
    accuracy_quantized: float


class Scorer:
    """One loaded base and the adapters in its slots; runs one sequence at a time."""

    def __init__(self, base: Path, quantization: str, adapters: dict[str, PackedAdapter]) -> None:
        self.model: Model = load_model(base, quantization)
        config = self.model.config
        self._slots = {name: slot for slot, name in enumerate(adapters)}
        pool = AdapterPool(config, max(1, len(adapters)), self.model.device, self.model.dtype)
        for name, packed in adapters.items():
            pool.load(self._slots[name], packed)
        self._lora = LoraContext(pool, self.model.device)
        num_blocks = -(-config.max_position // BLOCK_SIZE)
        self._kv = KVCache(config, num_blocks + 1, BLOCK_SIZE, self.model.device, self.model.dtype)
        self._table = np.arange(1, num_blocks + 1, dtype=np.int32)[None]

    def logits(self, token_ids: list[int], adapter: str | None, computed: int = 0) -> Tensor:
        """[T - computed, V]: next-token logits of all but the first `computed` tokens, which are cached."""
        total = len(token_ids)
        attention = AttentionMetadata.build(
            np.array([total - computed]), np.array([total]), self._table, BLOCK_SIZE
        )
        slot = -1 if adapter is None else self._slots[adapter]
        self._lora.begin(np.full(total - computed, slot))
        ids = torch.tensor(token_ids[computed:])
        positions = torch.from_numpy(attention.positions)
        return self.model.logits(self.model.forward(ids, positions, attention, self._kv, self._lora))

    def answer(self, prompt_ids: list[int], adapter: str | None, max_tokens: int) -> list[int]:
        """Greedy tokens up to the end of sequence, which is left out."""
        token_ids = list(prompt_ids)
        computed = 0
        for _ in range(max_tokens):
            token_id = int(self.logits(token_ids, adapter, computed)[-1].argmax())
            if token_id in self.model.config.eos_ids:
                break
            computed = len(token_ids)
            token_ids.append(token_id)
        return token_ids[len(prompt_ids) :]


class Bench:
    """The held-out conversations and the two bases they are run on."""

    def __init__(self, base: Path, adapters: Path, quantization: str) -> None:
        self.codec = TextCodec.load(base)
        self._tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
        self.names = sorted(folder.name for folder in adapters.iterdir() if folder.name in TASKS)
        packed = _pack_all(base, adapters, self.names)
        self.exact = Scorer(base, "none", packed)
        self.quantized = Scorer(base, quantization, packed)

    def conversations(self, task: str, count: int) -> list[Conversation]:
        found = []
        for example in TASKS[task].examples("heldout", count):
            prompt_ids = self._encode(example.prompt)
            answer_ids = self._tokenizer.encode(example.answer, add_special_tokens=False).ids
            found.append(Conversation(example, prompt_ids + answer_ids, len(prompt_ids)))
        return found

    def fidelity(self, task: str, adapter: str | None, conversations: list[Conversation]) -> Fidelity:
        divergences, agreements, nlls, nlls_quantized = [], [], [], []
        right = right_quantized = 0
        for conversation in conversations:
            scored = slice(conversation.answer_start - 1, len(conversation.token_ids) - 1)
            targets = torch.tensor(conversation.token_ids[conversation.answer_start :])[:, None]
            exact = self.exact.logits(conversation.token_ids, adapter)[scored].log_softmax(-1)
            moved = self.quantized.logits(conversation.token_ids, adapter)[scored].log_softmax(-1)
            divergences.append((exact.exp() * (exact - moved)).sum(-1))
            agreements.append((exact.argmax(-1) == moved.argmax(-1)).float())
            nlls.append(-exact.gather(1, targets)[:, 0])
            nlls_quantized.append(-moved.gather(1, targets)[:, 0])
            right += self._answers_right(self.exact, task, adapter, conversation)
            right_quantized += self._answers_right(self.quantized, task, adapter, conversation)
        return Fidelity(
            task,
            adapter,
            kl=_mean(divergences),
            top1=_mean(agreements),
            nll=_mean(nlls),
            nll_quantized=_mean(nlls_quantized),
            accuracy=right / len(conversations),
            accuracy_quantized=right_quantized / len(conversations),
        )

    def _answers_right(self, scorer: Scorer, task: str, adapter: str | None, asked: Conversation) -> bool:
        prompt_ids = asked.token_ids[: asked.answer_start]
        max_tokens = len(asked.token_ids) - asked.answer_start + 16
        answer_ids = scorer.answer(prompt_ids, adapter, max_tokens)
        text = self.codec.vocabulary.decode(answer_ids).decode("utf-8", "replace")
        return TASKS[task].check(asked.example, text)

    def _encode(self, prompt: str) -> list[int]:
        chat = self.codec.render_chat([{"role": "user", "content": prompt}])
        return asyncio.run(self.codec.encode_chat(chat))


def passes(rows: list[Fidelity]) -> list[str]:
    """What keeps the gate shut; empty when it opens. Rows with an adapter count: they are what is sold."""
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


def _pack_all(base: Path, adapters: Path, names: list[str]) -> dict[str, PackedAdapter]:
    config, digest = load_config(base), base_digest(base)
    packed = {}
    with TemporaryDirectory() as folder:
        for name in names:
            ref = pack(adapters / name, config, digest, Path(folder))
            packed[name] = PackedAdapter.read(artifact_path(Path(folder), ref.digest), ref.digest)
    return packed


def _mean(parts: list[Tensor]) -> float:
    return float(torch.cat(parts).mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=SAPLING / "base")
    parser.add_argument("--adapters", type=Path, default=SAPLING / "adapters")
    parser.add_argument("--quantization", default="int8")
    parser.add_argument("--examples", type=int, default=25, help="held-out conversations per task")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(options.base, options.adapters, options.quantization)
    rows = []
    print(
        f"{'task':<16}{'adapter':<10}{'KL nats':>9}{'top-1':>8}"
        f"{'NLL':>8}{'NLL q':>8}{'right':>8}{'right q':>8}"
    )
    for task in bench.names:
        conversations = bench.conversations(task, options.examples)
        for adapter in (task, None):
            row = bench.fidelity(task, adapter, conversations)
            rows.append(row)
            print(
                f"{task:<16}{'yes' if adapter else 'no':<10}{row.kl:>9.5f}{row.top1:>8.4f}{row.nll:>8.4f}"
                f"{row.nll_quantized:>8.4f}{row.accuracy:>8.3f}{row.accuracy_quantized:>8.3f}"
            )
    why = passes(rows)
    figures = {
        "base": options.base.resolve().parts[-3] if options.base == SAPLING / "base" else options.base.name,
        "quantization": options.quantization,
        "examples_per_task": options.examples,
        "gate": {
            "max_kl": MAX_KL,
            "min_top1": MIN_TOP1,
            "max_accuracy_loss": MAX_ACCURACY_LOSS,
            "passed": not why,
            "why_not": why,
        },
        "rows": [asdict(row) for row in rows],
    }
    write_report(options.out, figures)
    print("gate passed" if not why else "gate failed:\n  " + "\n  ".join(why))
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
