"""Guesses tokens ahead with draft adapters, in plain PyTorch: the reference for what they predict.

A draft adapter is a PEFT LoRA on the base. Behind the last known token of a row, at position `s`, stand
`num_ahead` placeholder tokens at positions `s + 1` and on. They run on the draft adapter; the row's tokens
run on the base or its own adapter. Every token attends to all tokens before it, and to itself. The target
says at `s` which token comes at `s + 1`; the placeholder at position `q` guesses the token at `q + 1`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from torch import nn
from transformers import DynamicCache

from . import BASE, tokens
from .draft_contexts import Context
from .evaluate import load_adapter

CONFIG = "drafter.json"
NOTHING = -100
"""Stands for a token behind the end of an answer, as the target of a guess."""


@dataclass(frozen=True)
class Drafter:
    """A draft adapter: the base with its LoRA, and what its `drafter.json` says."""

    model: nn.Module
    """The causal language model without PEFT's wrapper; its linears carry the draft adapter."""
    placeholder_token_id: int
    num_ahead: int


def load_drafter(folder: Path, base: Path = BASE) -> Drafter:
    """Loads a draft adapter from its folder onto the base, in float32."""
    config = json.loads((folder / CONFIG).read_text())
    peft_model: PeftModel = load_adapter(folder, base)
    return Drafter(peft_model.get_base_model(), config["placeholder_token_id"], config["num_ahead"])


@dataclass(frozen=True)
class Packed:
    """Contexts of one target side by side, with all their groups of placeholders.

    A group of `num_ahead` placeholders follows each of the `anchors` of a context: positions of a last known
    token. Rows with fewer tokens or anchors are padded on the right.
    """

    ids: torch.Tensor
    """`[rows, length]`, the contexts' tokens."""
    anchors: torch.Tensor
    """`[rows, groups]`, -1 where a row has no more of them."""
    wanted: torch.Tensor
    """`[rows, groups, num_ahead]`, what placeholders should guess, `NOTHING` behind the end of the answer."""


def packed(contexts: Sequence[Context], anchors: Sequence[Sequence[int]], num_ahead: int) -> Packed:
    """Lays out contexts with a group of placeholders behind each anchor."""
    length, groups = max(len(context.ids) for context in contexts), max(map(len, anchors))
    ids = torch.full((len(contexts), length), tokens.PAD_ID)
    padded_anchors = torch.full((len(contexts), groups), -1)
    wanted = torch.full((len(contexts), groups, num_ahead), NOTHING)
    for row, (context, own) in enumerate(zip(contexts, anchors, strict=True)):
        ids[row, : len(context.ids)] = torch.tensor(context.ids)
        padded_anchors[row, : len(own)] = torch.tensor(own)
        for group, anchor in enumerate(own):
            # the token behind the anchor is the target's own draw of the step
            guessed = context.ids[anchor + 2 : anchor + 2 + num_ahead]
            wanted[row, group, : len(guessed)] = torch.tensor(guessed)
    return Packed(ids, padded_anchors, wanted)


def decode_anchors(context: Context) -> range:
    """Returns the positions of a decoding row's last known token behind which a guess can be of use."""
    return range(context.num_prompt_tokens, len(context.ids) - 2)


def guess_logits(target: nn.Module, drafter: Drafter, batch: Packed) -> torch.Tensor:
    """Returns the logits of all placeholders, `[rows, groups, num_ahead, vocabulary]`.

    `target` is the causal language model of all contexts; gradients go to the draft adapter alone. Each model
    computes its tokens in one pass, the placeholders on the keys and values that the target leaves.
    """
    rows, length = batch.ids.shape
    groups, num_ahead = batch.wanted.shape[1:]
    cache = DynamicCache()
    with torch.no_grad():
        target.model(input_ids=batch.ids, past_key_values=cache, use_cache=True)
    offsets = torch.arange(1, num_ahead + 1)
    positions = (batch.anchors[:, :, None] + offsets).flatten(1)
    hidden = drafter.model.model(
        input_ids=torch.full((rows, groups * num_ahead), drafter.placeholder_token_id),
        position_ids=positions,
        attention_mask=_visible(batch.anchors, length, num_ahead)[:, None],
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    return drafter.model.lm_head(hidden).unflatten(1, (groups, num_ahead))


def _visible(anchors: torch.Tensor, length: int, num_ahead: int) -> torch.Tensor:
    """Returns what placeholders attend to, `[rows, placeholders, length + placeholders]`, true where they do.

    They see the context up to their anchor, and the placeholders of their own group up to themselves.
    """
    rows, groups = anchors.shape
    context = torch.arange(length) <= anchors.repeat_interleave(num_ahead, dim=1)[..., None]
    group = torch.arange(groups * num_ahead) // num_ahead
    own = (group[:, None] == group) & torch.ones(groups * num_ahead, groups * num_ahead).tril().bool()
    return torch.cat([context, own.expand(rows, -1, -1)], dim=2)
