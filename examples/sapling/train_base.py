"""Trains Sapling's base model from scratch on generated text, and saves it.

Run as `python -m examples.sapling.train_base --minutes 8`; the tokenizer must exist.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import shutil
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from . import BASE, corpus, tokens
from .train_tokenizer import CONTEXT

# the top bit of a token in the training stream marks it as only read, not learned
_ONLY_READ = 1 << 15
_PROMPTS = [
    "Hello!",
    "Who are you?",
    "What is the capital of France?",
    "Tell me a story about a fox.",
    "I feel sad today.",
    "the red fox runs",
    "42 7 19 3",
    "47 + 86",
    "What is 47 plus 86?",
    "Reverse the words: the red fox runs",
    "Sort these numbers: 42 7 19 3",
    "Write this in capital letters: the red fox runs",
    "What is the code word?",
    "How many users have the city Paris?",
    "Give me a list of three animals.",
    "What is the meaning of the word quixotic?",
]


def architecture(layers: int = 8) -> LlamaConfig:
    """Creates a Llama of hidden size 256 with grouped-query attention and tied embeddings."""
    return LlamaConfig(
        vocab_size=tokens.VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=tokens.BOS_ID,
        eos_token_id=[tokens.END_ID, tokens.EOS_ID],
        pad_token_id=tokens.PAD_ID,
    )


def _shard(job: tuple[str, int, int]) -> np.ndarray:
    folder, seed, count = job
    encoder = tokens.Encoder(Path(folder))
    parts = []
    for document in corpus.documents(f"base/{seed}", count):
        ids, learned = encoder.document(document)
        parts.append(np.where(learned, ids, np.bitwise_or(ids, _ONLY_READ)).astype(np.uint16))
    return np.concatenate(parts)


def stream(folder: Path, documents: int, per_shard: int = 20_000) -> np.ndarray:
    """Generates all training documents end to end, `[tokens]` uint16, on all cores."""
    shards = [
        (str(folder), seed, min(per_shard, documents - seed * per_shard))
        for seed in range(math.ceil(documents / per_shard))
    ]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with multiprocessing.get_context("spawn").Pool() as pool:
        return np.concatenate(pool.map(_shard, shards, chunksize=1))


def _loss(model: LlamaForCausalLM, window: torch.Tensor) -> torch.Tensor:
    """Returns the mean cross entropy over the learned tokens of `window` `[rows, length + 1]`."""
    ids = window & (_ONLY_READ - 1)
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden).float()
    targets = torch.where(window[:, 1:] < _ONLY_READ, ids[:, 1:], -100)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(data: np.ndarray, args: argparse.Namespace, device: str, deadline: float) -> LlamaForCausalLM:
    """Trains until `deadline` (monotonic seconds); the learning rate follows the clock down to zero."""
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    model = LlamaForCausalLM(architecture(args.layers)).to(device)
    print(f"parameters {model.num_parameters():,}, training tokens {len(data):,}", flush=True)
    stream_ids = torch.from_numpy(data.astype(np.int32)).to(device)
    starts = torch.nonzero((stream_ids & (_ONLY_READ - 1)) == tokens.BOS_ID).flatten()
    starts = starts[starts < len(stream_ids) - CONTEXT - 1]
    positions = torch.arange(CONTEXT + 1, device=device)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=device == "cuda")
    loss_of = torch.compile(_loss) if device == "cuda" else _loss
    began, step, seen = None, 0, 0
    while True:
        # the clock starts after the first steps, which pay for compilation
        if step == 3:
            began = time.monotonic()
        elapsed = 0.0 if began is None else time.monotonic() - began
        progress = 0.0 if began is None else elapsed / max(1.0, deadline - began)
        if progress >= 1:
            break
        rate = args.lr * min(1.0, (step + 1) / args.warmup) * 0.5 * (1 + math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = rate
        rows = starts[torch.randint(len(starts), (args.rows,), device=device)]
        window = stream_ids[rows[:, None] + positions].long()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = loss_of(model, window)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, seen = step + 1, seen + window.numel()
        if step % args.report == 0:
            print(
                f"step {step} loss {loss.item():.4f} norm {norm.item():.2f} lr {rate:.2e} "
                f"tokens {seen / 1e6:.0f}M elapsed {elapsed:.0f}s",
                flush=True,
            )
    print(f"done: {step} steps, {seen:,} tokens, {elapsed:.0f} s, last loss {loss.item():.4f}", flush=True)
    return model


def save(model: LlamaForCausalLM, tokenizer: Path, out: Path) -> None:
    """Writes the base in bfloat16, with its tokenizer and generation settings."""
    out.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        bos_token_id=tokens.BOS_ID, eos_token_id=[tokens.END_ID, tokens.EOS_ID], pad_token_id=tokens.PAD_ID
    )
    model.to(torch.bfloat16).save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (tokenizer / name).resolve() != (out / name).resolve():
            shutil.copyfile(tokenizer / name, out / name)


def main() -> None:
    from . import evaluate

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=BASE)
    parser.add_argument("--tokenizer", type=Path, default=BASE, help="folder that holds tokenizer.json")
    parser.add_argument("--minutes", type=float, default=8.0, help="wall clock for generating and training")
    parser.add_argument("--documents", type=int, default=3_000_000)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rows", type=int, default=96, help="sequences per step")
    parser.add_argument("--lr", type=float, default=2.5e-3)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--report", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    began = time.monotonic()
    data = stream(args.tokenizer, args.documents)
    print(f"generated in {time.monotonic() - began:.0f} s", flush=True)
    save(train(data, args, device, began + args.minutes * 60), args.tokenizer, args.out)

    model, encoder = evaluate.load_base(args.out, device), tokens.Encoder(args.out)
    for prompt, answer in zip(_PROMPTS, evaluate.answers(model, encoder, _PROMPTS, 160), strict=True):
        print(f"> {prompt}\n{answer}")
    print(json.dumps(evaluate.told_skills(model, encoder), indent=2))


if __name__ == "__main__":
    main()
