"""Parses the header of a safetensors file, more strictly than the library does.

A file is `length of the header (u64) | header (JSON) | data`. The header maps names to `{dtype, shape,
data_offsets}`. Tensors must be in the header's order and fill the data without gaps, each exactly as long as
its shape requires: a file has only one interpretation.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adapters.inspection.errors import WEIGHTS_FILE, InspectionRefused
from adapters.inspection.strict_json import decode_object

MAX_HEADER_BYTES = 1 << 20
"""Bytes; seven modules in each of a hundred layers take 0.2 MB."""
MAX_TENSORS = 2048
"""Seven modules in each of 128 layers take 1792."""
MAX_NAME = 256
MAX_DIMENSIONS = 8
PREFIX_BYTES = 8

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
"""The types that LoRA weights are trained in; any other is rejected."""

_METADATA = "__metadata__"
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_PARTS = {"dtype", "shape", "data_offsets"}
_OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive (PyTorch's own format, perhaps)",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
    b"\x1f\x8b": "a gzip archive",
    b"GGUF": "a GGUF file",
    b"\x89HDF": "an HDF5 file",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor's entry in the header, verified."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Start of its data, in bytes from the beginning of the file."""
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    tensors: dict[str, Tensor]
    """By name, in the order of the file."""
    metadata: dict[str, str]
    num_bytes: int
    """Size of the whole file."""


def read_header(descriptor: int) -> Header:
    """Reads and checks the header of an open file. Raises InspectionRefused naming the tensor's key, or the
    file.
    """
    size = os.fstat(descriptor).st_size
    text = _read_text(descriptor, size)
    fields = decode_object(WEIGHTS_FILE, text)
    metadata = _metadata(fields.pop(_METADATA, {}))
    _check_count(len(fields))
    first = PREFIX_BYTES + len(text)
    end = first
    tensors = {}
    for name, entry in fields.items():
        tensor = _tensor(name, entry, first, size)
        if tensor.start < end:
            raise InspectionRefused(name, "overlaps the tensor before it, or is not in the order of offsets")
        if tensor.start > end:
            raise InspectionRefused(name, f"leaves a hole of {tensor.start - end} bytes before it")
        end = tensor.end
        tensors[name] = tensor
    if end != size:
        raise InspectionRefused(WEIGHTS_FILE, f"has {size - end} bytes after its last tensor")
    return Header(tensors, metadata, size)


def read_exactly(descriptor: int, start: int, length: int) -> bytes:
    """Reads bytes of an open file. Raises InspectionRefused if it is too short."""
    pieces = []
    while length:
        piece = os.pread(descriptor, length, start)
        if not piece:
            raise InspectionRefused(WEIGHTS_FILE, "ends before the data that its header announces")
        pieces.append(piece)
        start += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def header_length(descriptor: int, size: int) -> int:
    """Returns the header's length from the first eight bytes, checked against the file. Raises
    InspectionRefused.
    """
    if size < PREFIX_BYTES:
        raise InspectionRefused(WEIGHTS_FILE, f"{size} bytes are too few for a safetensors file")
    prefix = read_exactly(descriptor, 0, PREFIX_BYTES)
    for magic, what in _OTHER_FORMATS.items():
        if prefix.startswith(magic):
            raise InspectionRefused(WEIGHTS_FILE, f"is {what}; only safetensors are read")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        reason = f"its header claims a length of {length} bytes, at most {MAX_HEADER_BYTES} are allowed"
        raise InspectionRefused(WEIGHTS_FILE, reason)
    if length > size - PREFIX_BYTES:
        reason = f"its header claims a length of {length} bytes, but the file has {size} bytes"
        raise InspectionRefused(WEIGHTS_FILE, reason)
    if length < 2:
        raise InspectionRefused(WEIGHTS_FILE, f"its header claims a length of {length} bytes")
    return length


def _read_text(descriptor: int, size: int) -> bytes:
    text = read_exactly(descriptor, PREFIX_BYTES, header_length(descriptor, size))
    if not text.startswith(b"{"):
        raise InspectionRefused(WEIGHTS_FILE, "its header does not start with '{'")
    # Counted exactly after parsing; this rejects most headers with far too many tensors before.
    _check_count(text.count(b'"data_offsets"'))
    return text


def _check_count(tensors: int) -> None:
    if tensors > MAX_TENSORS:
        raise InspectionRefused(WEIGHTS_FILE, f"has {tensors} tensors, at most {MAX_TENSORS} are allowed")


def _metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise InspectionRefused(_METADATA, "must map names to strings")
    return value


def _tensor(name: str, entry: Any, first: int, size: int) -> Tensor:
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        reason = f"is not a tensor's name: letters, digits, '_' and '-' between dots, at most {MAX_NAME}"
        raise InspectionRefused(name or WEIGHTS_FILE, reason)
    if not isinstance(entry, dict) or entry.keys() != _PARTS:
        raise InspectionRefused(name, "must have dtype, shape and data_offsets, and nothing else")
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise InspectionRefused(name, f"type {dtype} is not F32, F16 or BF16")
    shape = _shape(name, entry["shape"])
    begin, end = _offsets(name, entry)
    needed = math.prod(shape) * ITEM_BYTES[dtype]
    if end - begin != needed:
        raise InspectionRefused(
            name, f"has {end - begin} bytes, but {dtype} of shape {list(shape)} takes {needed}"
        )
    if end > size - first:
        raise InspectionRefused(name, f"ends at byte {end} of the data, which has {size - first}")
    return Tensor(name, dtype, shape, first + begin, first + end)


def _shape(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(length) is int for length in value):
        raise InspectionRefused(name, "shape must be a list of integers")
    if len(value) > MAX_DIMENSIONS:
        raise InspectionRefused(
            name, f"shape has {len(value)} dimensions, at most {MAX_DIMENSIONS} are allowed"
        )
    # No file has 2^63 elements of any type; beyond that the library's 64-bit counts overflow.
    if not all(0 < length < 1 << 63 for length in value):
        raise InspectionRefused(name, f"shape {value} must be positive and below 2^63")
    return tuple(value)


def _offsets(name: str, entry: Mapping[str, Any]) -> tuple[int, int]:
    value = entry["data_offsets"]
    if not isinstance(value, list) or len(value) != 2 or not all(type(offset) is int for offset in value):
        raise InspectionRefused(name, "data_offsets must be two integers")
    begin, end = value
    if not 0 <= begin <= end < 1 << 63:
        raise InspectionRefused(name, f"data_offsets {value} are not a range of bytes")
    return begin, end
