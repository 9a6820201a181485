"""Packs a PEFT LoRA directory into the artifact that engines read, or says why it cannot be packed.

The same code as for uploads (`adapters.inspection`) decides what is accepted: a directory is checked here
whether or not it was inspected before. Features that the kernels cannot reproduce (DoRA, biases, trained
embeddings, a modified base...) are rejected, not dropped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from adapters.inspection import config as adapter_config
from adapters.inspection.config import LoraConfig
from adapters.inspection.errors import CONFIG_FILE, WEIGHTS_FILE, InspectionRefused
from adapters.inspection.header import read_header
from adapters.inspection.modules import KEY_PREFIX, BaseShape, Pair, match_tensors, module_path
from adapters.rounding import OutOfRange, to_pair
from engine.lora.artifact import Dtype, LoraPair, PackedAdapter, artifact_path
from engine.model.config import ModelConfig
from engine.protocol import AdapterRef

__all__ = [
    "CONFIG_FILE",
    "KEY_PREFIX",
    "WEIGHTS_FILE",
    "LoraConfig",
    "PackingError",
    "module_path",
    "pack",
    "read_config",
]


PackingError = InspectionRefused
"""Packing raises what the inspection raises: a reason why an adapter cannot be served."""


def pack(
    peft_dir: Path, base_config: ModelConfig, base_digest: str, out_dir: Path, dtype: Dtype = "bfloat16"
) -> AdapterRef:
    """Packs a PEFT LoRA directory for a base and writes the artifact below `out_dir`.

    `dtype` is the type of the stored weights: "bfloat16" rounds wider inputs to the nearest even; "float32"
    stores every input exactly; "float8_e4m3" takes half the bytes of bf16, plus a scale for every rank row of
    A and B. Raises PackingError naming the field, key or file; then nothing is written.
    """
    config = read_config(peft_dir)
    layers = _read_layers(peft_dir / WEIGHTS_FILE, config, base_config, dtype)
    packed = PackedAdapter.build(layers, base_digest, dtype)
    packed.write(artifact_path(out_dir, packed.digest))
    return AdapterRef(packed.digest, packed.manifest.rank)


def read_config(peft_dir: Path) -> LoraConfig:
    """Reads the adapter config of a PEFT directory. Raises PackingError."""
    with _opened(peft_dir / CONFIG_FILE, "the file is missing") as descriptor:
        return adapter_config.read_config(descriptor)[0]


def _read_layers(
    path: Path, config: LoraConfig, base: ModelConfig, dtype: Dtype
) -> list[dict[str, LoraPair]]:
    """Returns the pairs of the targeted modules, per layer."""
    with _opened(path, "the file is missing (only safetensors are read)") as descriptor:
        header = read_header(descriptor)
    pairs = match_tensors(header, config, BaseShape(base.num_layers, base.linear_shapes))
    layers: list[dict[str, LoraPair]] = [{} for _ in range(base.num_layers)]
    try:
        with safe_open(path, framework="pt") as file:
            for pair in pairs:
                a, b = (_finite(tensor.name, file.get_tensor(tensor.name)) for tensor in (pair.a, pair.b))
                layers[pair.layer][pair.name] = _stored(pair, a, b.t(), dtype)
    except SafetensorError as error:
        raise PackingError(WEIGHTS_FILE, f"not a valid safetensors file: {error}") from error
    return layers


def _stored(pair: Pair, a_RK: torch.Tensor, b_RN: torch.Tensor, dtype: Dtype) -> LoraPair:
    try:
        return to_pair(a_RK, b_RN, pair.scale, dtype)
    except OutOfRange as error:
        raise PackingError({"A": pair.a.name, "B": pair.b.name}[error.side], error.reason) from error


def _finite(key: str, tensor: torch.Tensor) -> torch.Tensor:
    if not torch.isfinite(tensor).all():
        raise PackingError(key, "has values that are not finite")
    return tensor


@contextmanager
def _opened(path: Path, missing: str) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PackingError(path.name, missing) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)
