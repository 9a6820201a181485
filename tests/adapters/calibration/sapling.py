"""Sapling's adapters as a tenant has them: good ones, and broken in ways that serve without an error."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from adapters.calibration.gate import StoredDtype
from adapters.packing import CONFIG_FILE, WEIGHTS_FILE, pack
from engine.lora.artifact import artifact_path
from engine.model.config import ModelConfig, load_config
from engine.model.weights import base_digest
from engine.protocol import AdapterRef
from examples.sapling.tasks import TASKS

WEIGHTS = Path(__file__).resolve().parents[3] / "examples/sapling/weights"
BASE = WEIGHTS / "base"
CONFIG: ModelConfig = load_config(BASE)
DTYPES: tuple[StoredDtype, ...] = ("bfloat16", "float8_e4m3")

Files = tuple[dict[str, Any], dict[str, Tensor]]


def write_samples(path: Path, task: str, count: int) -> Path:
    """Held-out conversations of a task, as a tenant would upload them."""
    lines = [
        {"messages": [{"role": "user", "content": e.prompt}, {"role": "assistant", "content": e.answer}]}
        for e in TASKS[task].examples("heldout", count, seed=11)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def write_adapter(path: Path, task: str, breakage: Callable[[Files], Files] | None = None) -> Path:
    """A copy of a task's adapter, broken on the way if so told."""
    source = WEIGHTS / "adapters" / task
    config = json.loads((source / "adapter_config.json").read_text())
    tensors = load_file(source / "adapter_model.safetensors")
    if breakage is not None:
        config, tensors = breakage((config, tensors))
    path.mkdir(parents=True)
    (path / "adapter_config.json").write_text(json.dumps(config))
    save_file(
        {key: tensor.contiguous() for key, tensor in tensors.items()}, path / "adapter_model.safetensors"
    )
    return path


_packed: dict[bytes, list[tuple[StoredDtype, AdapterRef, bytes]]] = {}
"""Artifacts by the SHA-256 of what they were packed from: most tests are about the same few adapters."""


def pack_all(peft_dir: Path, out: Path) -> dict[StoredDtype, AdapterRef]:
    config, weights = ((peft_dir / name).read_bytes() for name in (CONFIG_FILE, WEIGHTS_FILE))
    source = hashlib.sha256(config + weights).digest()
    if source not in _packed:
        digest = base_digest(BASE)
        refs = [(dtype, pack(peft_dir, CONFIG, digest, out, dtype)) for dtype in DTYPES]
        _packed[source] = [(dtype, ref, artifact_path(out, ref.digest).read_bytes()) for dtype, ref in refs]
    for _, ref, artifact in _packed[source]:
        path = artifact_path(out, ref.digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(artifact)
    return {dtype: ref for dtype, ref, _ in _packed[source]}


def copy_base(path: Path) -> Path:
    """Without the set of samples that comes with it."""
    shutil.copytree(BASE, path, ignore=shutil.ignore_patterns("calibration.jsonl"))
    return path


# Breakages: each is packed and served without an error. ---------------------------------------------------


def shuffle_layers(files: Files) -> Files:
    """Every layer's matrices stand in another layer."""
    config, tensors = files
    count = CONFIG.num_layers
    moved = {}
    for key, tensor in tensors.items():
        before, _, rest = key.partition(".layers.")
        layer, _, module = rest.partition(".")
        moved[f"{before}.layers.{(int(layer) + 3) % count}.{module}"] = tensor
    return config, moved


def scale_alpha(factor: float) -> Callable[[Files], Files]:
    def scale(files: Files) -> Files:
        config, tensors = files
        patterns = {key: alpha * factor for key, alpha in (config["alpha_pattern"] or {}).items()}
        return config | {"lora_alpha": config["lora_alpha"] * factor, "alpha_pattern": patterns}, tensors

    return scale


def drop_rslora(files: Files) -> Files:
    config, tensors = files
    assert config["use_rslora"]
    return config | {"use_rslora": False}, tensors


def of_another_base(files: Files) -> Files:
    """What the same training gives on a base from another seed, whose channels stand in another order.

    Both bases compute the same; the adapter of one on the other is the classic mistake that fits every shape.
    """
    config, tensors = files
    generator = torch.Generator().manual_seed(5)
    residual = torch.randperm(CONFIG.hidden_size, generator=generator)
    inner = torch.randperm(CONFIG.intermediate_size, generator=generator)
    moved = {}
    for key, tensor in tensors.items():
        module = key.split(".")[-3]
        if ".lora_A." in key and module != "o_proj":
            tensor = tensor[:, inner if module == "down_proj" else residual]
        elif ".lora_B." in key and module in ("o_proj", "down_proj"):
            tensor = tensor[residual]
        elif ".lora_B." in key and module in ("gate_proj", "up_proj"):
            tensor = tensor[inner]
        moved[key] = tensor
    return config, moved


FRAGILITY = 16


def lean_on_small_differences(files: Files) -> Files:
    """On the unquantised base nearly the same function: every layer's values come out 16 times smaller,
    because the adapter takes 15 of 16 parts of the base's own matrix away, and the output projection
    multiplies by 16. What rounding did to the base's matrix is not taken away, and is multiplied too.
    """
    config, tensors = files
    part = 1 / FRAGILITY
    made = dict(tensors)
    with safe_open(BASE / "model.safetensors", framework="pt") as base:
        for layer in range(CONFIG.num_layers):
            for module, factor in (("v_proj", part), ("o_proj", 1 / part)):
                path = f"model.layers.{layer}.self_attn.{module}"
                key = f"base_model.model.{path}.lora_"
                weight = base.get_tensor(f"{path}.weight").float()
                scale = config["lora_alpha"] / config["r"] ** 0.5
                a, b = tensors[f"{key}A.weight"].float(), tensors[f"{key}B.weight"].float()
                identity = torch.eye(len(weight)) * (factor - 1)
                made[f"{key}A.weight"] = torch.cat((weight, a))
                made[f"{key}B.weight"] = torch.cat((identity, b * scale * factor), 1)
    ranks = {module: CONFIG.linear_shapes[module][0] + config["r"] for module in ("v_proj", "o_proj")}
    # rsLoRA: alpha / sqrt(rank) is to be 1.
    alphas = {module: rank**0.5 for module, rank in ranks.items()}
    return config | {"rank_pattern": ranks, "alpha_pattern": alphas}, made
