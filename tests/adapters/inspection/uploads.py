"""Pairs of uploaded files written byte by byte, so that every lie can be told. No torch, no library."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SAPLING = Path(__file__).resolve().parents[3] / "examples/sapling/weights"
BASE_CONFIG = SAPLING / "base/config.json"

LAYERS = 8
SHAPES = {
    "q_proj": (256, 256), "k_proj": (128, 256), "v_proj": (128, 256), "o_proj": (256, 256),
    "gate_proj": (640, 256), "up_proj": (640, 256), "down_proj": (256, 640),
}  # fmt: skip
"""Of sapling: (out_features, in_features)."""
RANK = 4
ITEM = {"F32": 4, "F16": 2, "BF16": 2}
ONE = {"F32": b"\x00\x00\x80\x3f", "F16": b"\x00\x3c", "BF16": b"\x80\x3f"}


def key(layer: int = 0, module: str = "q_proj", side: str = "A") -> str:
    block = "self_attn" if module in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
    return f"base_model.model.model.layers.{layer}.{block}.{module}.lora_{side}.weight"


def plain_config(**changes: Any) -> dict[str, Any]:
    """Rank 4 on q and v; `...` removes a field."""
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "sapling",
        "r": RANK,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
    }
    return {name: value for name, value in (config | changes).items() if value is not ...}


@dataclass
class Upload:
    """What the two files will hold. Fields are changed as a test likes, then written."""

    config: dict[str, Any] | bytes = field(default_factory=plain_config)
    header: dict[str, Any] | bytes = field(default_factory=dict)
    data: bytes = b""
    length: int | None = None
    """Said to be the header's; None: the truth."""
    weights: bytes | None = None
    """Instead of header and data."""

    def add(self, name: str, dtype: str, shape: Iterable[int], data: bytes | None = None) -> None:
        """A tensor at the end; of small numbers unless told."""
        assert isinstance(self.header, dict)
        shape = list(shape)
        size = ITEM[dtype]
        for length in shape:
            size *= length
        data = ONE[dtype] * (size // ITEM[dtype]) if data is None else data
        offsets = [len(self.data), len(self.data) + len(data)]
        self.header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        self.data += data

    def entry(self, name: str) -> dict[str, Any]:
        assert isinstance(self.header, dict)
        found = self.header[name]
        assert isinstance(found, dict)
        return found

    def fill(self, name: str, value: bytes, index: int = 0) -> None:
        """Overwrite one element."""
        start = self.entry(name)["data_offsets"][0] + index * len(value)
        self.data = self.data[:start] + value + self.data[start + len(value) :]

    def file(self) -> bytes:
        if self.weights is not None:
            return self.weights
        text = self.header if isinstance(self.header, bytes) else json.dumps(self.header).encode()
        length = len(text) if self.length is None else self.length
        return length.to_bytes(8, "little") + text + self.data

    def write(self, folder: Path) -> tuple[Path, Path]:
        """(weights, config)."""
        folder.mkdir(parents=True, exist_ok=True)
        weights, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
        weights.write_bytes(self.file())
        text = self.config if isinstance(self.config, bytes) else json.dumps(self.config).encode()
        config.write_bytes(text)
        return weights, config


def good_upload(
    modules: Iterable[str] = ("q_proj", "v_proj"),
    rank: int = RANK,
    dtype: str = "BF16",
    layers: Iterable[int] = range(LAYERS),
) -> Upload:
    """One that sapling would serve."""
    upload = Upload()
    upload.header = {"__metadata__": {"format": "pt"}}
    for layer in layers:
        for module in modules:
            out_features, in_features = SHAPES[module]
            upload.add(key(layer, module, "A"), dtype, (rank, in_features))
            upload.add(key(layer, module, "B"), dtype, (out_features, rank))
    return upload
