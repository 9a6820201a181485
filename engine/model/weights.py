"""A base model's weights on disk: Hugging Face safetensors, in one file or in shards.

Owns finding the files, checking every name and shape against the config, reading tensors in the order they
are asked for, and the base's digest. Refuses to know what the tensors are for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.model.config import GROUPS, ModelConfig

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)
"""Buffers that old checkpoints carry and that follow from the config."""
LISTED = 5
"""Names spelled out in an error; the rest is counted."""


def layer_tensor(layer: int, module: str, kind: str = "weight") -> str:
    """Checkpoint name of a linear's tensor, such as "model.layers.0.self_attn.q_proj.weight"."""
    block = "self_attn" if module in GROUPS["qkv"] + GROUPS["o"] else "mlp"
    return f"model.layers.{layer}.{block}.{module}.{kind}"


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor a checkpoint of this config must have, with its shape."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        for module, shape in config.linear_shapes.items():
            shapes[layer_tensor(layer, module)] = shape
            if config.has_bias(module):
                shapes[layer_tensor(layer, module, "bias")] = shape[:1]
        if config.qk_norm:
            shapes[prefix + "self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[prefix + "self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


def weight_files(base_dir: Path) -> list[Path]:
    """The safetensors files of a checkpoint, in name order.

    Raises:
        ValueError: there are none, or the index names one that is missing.
    """
    if (base_dir / SINGLE_FILE).exists():
        return [base_dir / SINGLE_FILE]
    index_path = base_dir / INDEX_FILE
    if not index_path.exists():
        raise ValueError(f"{base_dir} has neither {SINGLE_FILE} nor {INDEX_FILE}")
    try:
        names = sorted(set(json.loads(index_path.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{INDEX_FILE} has no usable weight_map: {error!r}") from None
    missing = [name for name in names if not (base_dir / name).is_file()]
    if missing:
        raise ValueError(f"{INDEX_FILE} names files that are missing: {_listing(missing)}")
    return [base_dir / name for name in names]


class Checkpoint:
    """An open, checked checkpoint: tensors are read when asked for."""

    def __init__(self, owners: dict[str, Any], dtype: torch.dtype, device: torch.device) -> None:
        self._owners = owners
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str) -> Tensor:
        return self._owners[name].get_tensor(name).to(self._device, self._dtype)

    def fused(self, names: list[str]) -> Tensor:
        """Tensors concatenated along their output dimension."""
        return torch.cat([self.tensor(name) for name in names])


@contextmanager
def open_checkpoint(
    base_dir: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> Iterator[Checkpoint]:
    """Opens the files and checks names and shapes; tensors come out as `dtype` on `device`.

    Raises:
        ValueError: a file is unreadable, or tensors are missing, unexpected, of another shape or no floats.
    """
    with ExitStack() as stack:
        owners: dict[str, Any] = {}
        for path in weight_files(base_dir):
            try:
                opened = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{path.name} is no readable safetensors file: {error}") from None
            owners.update(dict.fromkeys(opened.keys(), opened))
        _check_tensors(owners, config)
        yield Checkpoint(owners, dtype, device)


def _check_tensors(owners: dict[str, Any], config: ModelConfig) -> None:
    expected = expected_tensors(config)
    missing = [name for name in expected if name not in owners]
    if missing:
        raise ValueError(f"the checkpoint lacks tensors that config.json asks for: {_listing(missing)}")
    known_extra = {"lm_head.weight"} if config.tie_embeddings else set()
    extra = [name for name in owners if name not in expected and name not in known_extra]
    extra = [name for name in extra if not name.endswith(IGNORED_SUFFIXES)]
    if extra:
        raise ValueError(f"the checkpoint has tensors that config.json does not explain: {_listing(extra)}")
    for name, shape in expected.items():
        found = owners[name].get_slice(name)
        if tuple(found.get_shape()) != shape:
            raise ValueError(f"{name} has shape {tuple(found.get_shape())}, config.json implies {shape}")
        if found.get_dtype() not in ("F32", "F16", "BF16", "F64"):
            raise ValueError(f"{name} is stored as {found.get_dtype()}; only F32, F16 and BF16 are read")


def _listing(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:LISTED])
    return shown if len(names) <= LISTED else f"{shown} and {len(names) - LISTED} more"


def base_digest(base_dir: Path) -> str:
    """Hex SHA-256 over config.json and the weight files: what adapters are packed against."""
    digest = hashlib.sha256()
    for path in [base_dir / "config.json", *weight_files(base_dir)]:
        digest.update(f"{path.name}:{path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
