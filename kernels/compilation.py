"""Compiles every Triton kernel ahead of time, with the types and tile sizes it is launched with.

Describes one compilation, runs it for a GPU that need not be present, and reports the shared and local memory
of the result. `kernels/<op>/kernel.py` lists its compilations in `COMPILATIONS`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ARCHITECTURES = (80, 90, 100)
"""Compute capabilities times ten: A100, H100 and H200, B200."""

SHARED_MEMORY_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
"""Limit per block. Source: CUDA C++ Programming Guide, table of compute capabilities."""


@dataclass(frozen=True)
class Compilation:
    """One specialisation of a kernel."""

    source_type: ClassVar[Any] = ASTSource
    kernel: Any
    """The `triton.jit` function."""
    signature: Mapping[str, str | tuple[str, ...]]
    """Type of each argument that is no constexpr, e.g. {"x_ptr": "*bf16", "num_tokens": "i32"}."""
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2
    architectures: tuple[int, ...] = ARCHITECTURES
    """Fewer where an instruction is missing: FP8 products begin at 89."""
    local_bytes: int = 0
    """Local memory a thread may take: registers that spill. More than 0 needs a measured reason."""

    @property
    def name(self) -> str:
        sizes = ",".join(f"{name}={value}" for name, value in self.constexprs.items())
        return f"{self.kernel.__name__}[{sizes}]"

    def compile(self, architecture: int) -> Any:
        """Returns the compiled kernel (`.metadata.shared` in bytes, `.asm["cubin"]`); needs no GPU."""
        types = {name: self.signature.get(name, "constexpr") for name in self.kernel.arg_names}
        constants = {(self.kernel.arg_names.index(name),): value for name, value in self.constexprs.items()}
        # Base pointers come from torch, which aligns them to 16 bytes and more.
        attributes = {
            (index,): [["tt.divisibility", 16]]
            for index, name in enumerate(self.kernel.arg_names)
            if str(types[name]).startswith("*")  # addresses of several ranks are a tuple of integers
        }
        return triton.compile(
            self.source_type(self.kernel, types, constants, attributes),
            target=GPUTarget("cuda", architecture, 32),
            options=self.options,
        )

    @property
    def options(self) -> dict[str, int]:
        """Options of the compiler."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}


# Records of the section .nv.info: format, attribute, then 16 bits of value or the length of what follows.
_HAS_PAYLOAD = 4
_FRAME_SIZE = 0x11
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")


def local_memory_bytes(cubin: bytes) -> int:
    """What each thread of a compiled kernel keeps in local memory, which is device memory in disguise.

    The driver tells once a kernel is loaded on a GPU; the file (ELF64) says it without one, as the size of
    each function's stack frame.
    """
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("a cubin is a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names_index = struct.unpack_from("<HHH", cubin, 58)
    sections = [_SECTION_HEADER.unpack_from(cubin, table + index * size) for index in range(count)]
    names_at = sections[names_index][4]
    frames = [0]
    for name, _, _, _, offset, length, *_ in sections:
        start = names_at + name
        if cubin[start : cubin.index(b"\0", start)] == b".nv.info":
            frames += _frame_sizes(cubin[offset : offset + length])
    return max(frames)


def _frame_sizes(records: bytes) -> list[int]:
    found, at = [], 0
    while at + 4 <= len(records):
        kind, attribute, length = struct.unpack_from("<BBH", records, at)
        at += 4
        if kind == _HAS_PAYLOAD:
            if attribute == _FRAME_SIZE:
                found.append(struct.unpack_from("<II", records, at)[1])
            at += length
    return found
