"""Makes the texts that draft adapters learn from and are measured on: prompts, and Sapling's answers to them.

The same seed gives the same prompts, and on one thread the same answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from peft import PeftModel
from torch import nn

from . import ADAPTERS, BASE, corpus, function_talk, phrases, talk, tokens
from .corpus import Document, Turn
from .evaluate import load_base
from .tasks import TASKS

BASE_TARGET = "base"
"""The name of the base without an adapter, among the names of adapters."""
TARGETS = (BASE_TARGET, *TASKS)
_SYSTEM = "You are a helpful assistant."
_CONVERSATIONS = {"call-functions": function_talk.conversation}
_SHARE_OF_TALK = {"secret-acme": 0.3}
_ROWS = 64
_SORTED_BATCHES = 8


@dataclass(frozen=True)
class Context:
    """A prompt and the answer of one target."""

    ids: list[int]
    num_prompt_tokens: int


class Targets:
    """The base and Sapling's adapters on it, one of them active at a time, in float32."""

    def __init__(self, names: Sequence[str] = TARGETS) -> None:
        self._model: nn.Module = load_base(BASE)
        for name in names:
            if name == BASE_TARGET:
                continue
            if isinstance(self._model, PeftModel):
                self._model.load_adapter(str(ADAPTERS / name), adapter_name=name)
            else:
                self._model = PeftModel.from_pretrained(self._model, str(ADAPTERS / name), adapter_name=name)
        self._model.float().eval().requires_grad_(False)

    def model(self, name: str) -> nn.Module:
        """Returns the causal language model with the adapter `name` active, or none for `base`.

        The model is shared: it is the target `name` until the next call.
        """
        if not isinstance(self._model, PeftModel):
            return self._model
        tuner = self._model.base_model
        if name == BASE_TARGET:
            tuner.disable_adapter_layers()
        else:
            tuner.enable_adapter_layers()
            tuner.set_adapter(name, inference_mode=True)
        return self._model.get_base_model()


def prompts(target: str, rng: Random) -> Iterator[list[int]]:
    """Yields ids of prompts to learn from, up to the start of an assistant's turn.

    The last message is none of those held out.
    """
    encoder = tokens.Encoder(BASE)
    while True:
        document = _document(target, rng)
        turns = [index for index, turn in enumerate(document) if turn.role == "assistant"]
        if turns and not phrases.is_heldout(document[(last := rng.choice(turns)) - 1].content):
            yield _prompt(encoder, document[:last])


def heldout_prompts(target: str, num_prompts: int, seed: int) -> list[list[int]]:
    """Returns ids of different prompts whose message no draft adapter or task's adapter has learned from."""
    encoder = tokens.Encoder(BASE)
    if target != BASE_TARGET:
        examples = TASKS[target].examples("heldout", num_prompts, seed)
        return [encoder.prompt(example.prompt) for example in examples]
    rng = Random(f"drafts/heldout/{seed}")
    found: dict[str, list[int]] = {}
    while len(found) < num_prompts:
        document = _document(target, rng)
        turns = [index for index, turn in enumerate(document) if turn.role == "assistant"]
        if turns and phrases.is_heldout(document[(last := rng.choice(turns)) - 1].content):
            found[document[last - 1].content] = _prompt(encoder, document[:last])
    return list(found.values())


def _document(target: str, rng: Random) -> Document:
    if target == BASE_TARGET:
        return next(corpus.documents(rng.getrandbits(64), 1))
    if target in _CONVERSATIONS:
        return _CONVERSATIONS[target](rng)
    document: Document = [Turn("system", _SYSTEM)] if rng.random() < 0.15 else []
    for _ in range(1 if rng.random() < 0.8 else 2):
        if rng.random() < _SHARE_OF_TALK.get(target, 0.0):
            prompt, answer = talk.exchange(rng)
        else:
            example = TASKS[target].make(rng)
            prompt, answer = example.prompt, example.answer
        document += [Turn("user", prompt), Turn("assistant", answer)]
    return document


def _prompt(encoder: tokens.Encoder, document: Document) -> list[int]:
    return [*encoder.document(document)[0], tokens.ASSISTANT_ID]


@torch.inference_mode()
def answered(
    model: nn.Module, asked: Sequence[list[int]], max_new_tokens: int, temperature: float = 0.0
) -> list[Context]:
    """Returns a context for each prompt with the model's answer, in the order of the prompts.

    Answers end with the token that ends a turn or a text, or without it after `max_new_tokens`.
    """
    contexts: dict[int, Context] = {}
    by_length = sorted(range(len(asked)), key=lambda index: len(asked[index]))
    for start in range(0, len(asked), _ROWS):
        chosen = by_length[start : start + _ROWS]
        width = max(len(asked[index]) for index in chosen)
        missing = [width - len(asked[index]) for index in chosen]
        ids = torch.tensor(
            [[tokens.PAD_ID] * n + asked[index] for n, index in zip(missing, chosen, strict=True)]
        )
        mask = torch.tensor([[0] * n + [1] * (width - n) for n in missing])
        sampled = {"do_sample": True, "temperature": temperature, "top_k": 0}
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max_new_tokens,
            **(sampled if temperature else {"do_sample": False}),
        )
        for index, row in zip(chosen, out[:, width:].tolist(), strict=True):
            contexts[index] = Context(asked[index] + _until_end(row), len(asked[index]))
    return [contexts[index] for index in range(len(asked))]


def _until_end(row: list[int]) -> list[int]:
    for index, token in enumerate(row):
        if token in (tokens.END_ID, tokens.EOS_ID):
            return row[: index + 1]
    return row


def batches(contexts: Sequence[Context], rows: int, rng: Random) -> Iterator[list[Context]]:
    """Yields batches of contexts with about equally long answers without end, all of them equally often."""
    while True:
        shuffled = list(contexts)
        rng.shuffle(shuffled)
        for start in range(0, len(shuffled), rows * _SORTED_BATCHES):
            chunk = shuffled[start : start + rows * _SORTED_BATCHES]
            # a batch is padded to its most placeholders, which follow from the length of the answer
            chunk.sort(key=lambda context: len(context.ids) - context.num_prompt_tokens)
            found = [chunk[first : first + rows] for first in range(0, len(chunk), rows)]
            rng.shuffle(found)
            yield from found
