"""What a hostile upload is, and the ways of making one out of a good one."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.adapters.inspection.uploads import LAYERS, SHAPES, Upload, good_upload, key, plain_config

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
A, B = key(side="A"), key(side="B")
V = key(module="v_proj")
LAST = key(LAYERS - 1, "v_proj", "B")


@dataclass(frozen=True)
class HostileCase:
    """`field` is what a refusal names: `param` over HTTP."""

    name: str
    field: str
    change: Callable[[Upload], None]
    dtype: str = "BF16"

    def build(self, folder: Path) -> tuple[Path, Path]:
        """Write (weights, config)."""
        upload = good_upload(dtype=self.dtype)
        self.change(upload)
        return upload.write(folder)


def setting(**values: Any) -> Callable[[Upload], None]:
    """Change attributes of the upload."""
    return lambda upload: [setattr(upload, name, value) for name, value in values.items()] and None


def config(**changes: Any) -> Callable[[Upload], None]:
    return setting(config=plain_config(**changes))


def entry(name: str = A, **changes: Any) -> Callable[[Upload], None]:
    """Change what the header says of a tensor; `...` removes a part."""

    def change(upload: Upload) -> None:
        told = upload.entry(name)
        told.update(changes)
        for part in [part for part, value in told.items() if value is ...]:
            del told[part]

    return change


def header_text(edit: Callable[[bytes], bytes], **also: Any) -> Callable[[Upload], None]:
    """Rewrite the header's JSON as text."""

    def change(upload: Upload) -> None:
        upload.header = edit(json.dumps(upload.header).encode())
        for name, value in also.items():
            setattr(upload, name, value)

    return change


def renamed(old: str, new: str) -> Callable[[Upload], None]:
    """The same tensor, in the same place, under another name."""

    def change(upload: Upload) -> None:
        assert isinstance(upload.header, dict)
        upload.header = {new if name == old else name: told for name, told in upload.header.items()}

    return change


def without(*names: str) -> Callable[[Upload], None]:
    """Good but for tensors that are not there."""

    def change(upload: Upload) -> None:
        fresh = Upload()
        assert isinstance(upload.header, dict)
        for name, told in upload.header.items():
            if name not in names and name != "__metadata__":
                start, end = told["data_offsets"]
                fresh.add(name, told["dtype"], told["shape"], upload.data[start:end])
        upload.header, upload.data = fresh.header, fresh.data

    return change


def added(name: str, dtype: str = "BF16", shape: tuple[int, ...] = (4, 256)) -> Callable[[Upload], None]:
    return lambda upload: upload.add(name, dtype, shape)


def reshaped(name: str, *shape: int) -> Callable[[Upload], None]:
    """A whole, consistent tensor of another shape."""

    def change(upload: Upload) -> None:
        fresh = Upload()
        assert isinstance(upload.header, dict)
        for each, told in upload.header.items():
            if each != "__metadata__":
                fresh.add(each, told["dtype"], shape if each == name else told["shape"])
        upload.header, upload.data = fresh.header, fresh.data

    return change


def another_base(**shapes: tuple[int, int]) -> Callable[[Upload], None]:
    """Trained on a model of other sizes."""

    def change(upload: Upload) -> None:
        upload.header, upload.data = {}, b""
        for layer in range(LAYERS):
            for module in ("q_proj", "v_proj"):
                out_features, in_features = (SHAPES | shapes)[module]
                upload.add(key(layer, module, "A"), "BF16", (4, in_features))
                upload.add(key(layer, module, "B"), "BF16", (out_features, 4))

    return change


def value(name: str, dtype: str, number: float, index: int = 0) -> Callable[[Upload], None]:
    packed = struct.pack("<f", number)
    raw = {"F32": packed, "BF16": packed[2:], "F16": b"" if dtype != "F16" else struct.pack("<e", number)}
    return lambda upload: upload.fill(name, raw[dtype], index)
