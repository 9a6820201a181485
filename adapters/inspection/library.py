"""Compares our reading of a safetensors header with the library's: a file that they read differently is
rejected.

Later readers use the library. It only opens paths, which would need the right to open files, so it is given a
shadow instead: a file in memory with the same header and length, whose data was never written and takes no
memory.
"""

from __future__ import annotations

import os

from safetensors import SafetensorError, safe_open

from adapters.inspection.errors import WEIGHTS_FILE, InspectionRefused
from adapters.inspection.header import PREFIX_BYTES, Header, header_length, read_exactly


def make_shadow(descriptor: int) -> int | None:
    """Returns a descriptor of an open file's shadow; None if the header's length alone is invalid."""
    size = os.fstat(descriptor).st_size
    try:
        length = header_length(descriptor, size)
        text = read_exactly(descriptor, 0, PREFIX_BYTES + length)
    except InspectionRefused:
        return None  # `read_header` reports why
    shadow = os.memfd_create("header", os.MFD_CLOEXEC)
    view = memoryview(text)
    while view:
        view = view[os.write(shadow, view) :]
    os.ftruncate(shadow, size)
    return shadow


def check_agreement(header: Header, shadow: int) -> None:
    """Raises InspectionRefused unless the library reads the same tensors with the same types and shapes."""
    try:
        with safe_open(f"/proc/self/fd/{shadow}", framework="np") as file:
            if list(file.offset_keys()) != list(header.tensors):
                raise InspectionRefused(WEIGHTS_FILE, "the safetensors library finds other tensors in it")
            if (file.metadata() or {}) != header.metadata:
                raise InspectionRefused(WEIGHTS_FILE, "the safetensors library finds other metadata in it")
            for tensor in header.tensors.values():
                view = file.get_slice(tensor.name)
                if (view.get_dtype(), tuple(view.get_shape())) != (tensor.dtype, tensor.shape):
                    raise InspectionRefused(tensor.name, "the safetensors library reads it differently")
    except SafetensorError as error:
        reason = f"not a valid safetensors file: {error}"
        raise InspectionRefused(WEIGHTS_FILE, reason) from error
