"""Gives tokens that the training text never had embeddings of their own, so that adapters can learn to write
them.

    python -m examples.sapling.separate_tokens

Training pushes the embeddings of such tokens to one place: their only gradient says that they are unlikely.
Adapters do not train embeddings, and cannot tell `<` from `}` while they are the same. Each of these rows is
moved by a random direction; what the base answers stays the same, since none of them becomes likely.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from . import BASE
from .tokens import BOS_ID, PAD_ID

EMBEDDINGS = "model.embed_tokens.weight"
NEAR = 0.3
"""Distance below which a row is one of those. Rows of other tokens are 0.6 from them, and more."""
STEP = 0.6
SEED = 0


def separated(rows_VH: torch.Tensor) -> torch.Tensor:
    """Returns the embeddings [V, H] with those moved that lie where most of the untrained ones do."""
    is_close = torch.cdist(rows_VH, rows_VH) < NEAR
    centre = int(is_close.sum(dim=1).argmax())
    moved = is_close[centre].nonzero().flatten()
    moved = moved[(moved != BOS_ID) & (moved != PAD_ID)]
    drawn = torch.randn(rows_VH.shape, generator=torch.Generator().manual_seed(SEED))[moved]
    result = rows_VH.clone()
    result[moved] += STEP * torch.nn.functional.normalize(drawn, dim=1)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=BASE)
    file = parser.parse_args().base / "model.safetensors"
    with safe_open(file, "pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        metadata = opened.metadata()
    before = tensors[EMBEDDINGS]
    tensors[EMBEDDINGS] = separated(before.float()).to(before.dtype)
    save_file(tensors, file, metadata)
    print(f"{(tensors[EMBEDDINGS] != before).any(dim=1).sum()} embeddings moved")


if __name__ == "__main__":
    main()
