"""What must compile: every Triton kernel with the types and tile sizes it is launched with.

Owns the description of one compilation and running it for a GPU that need not be there.
`kernels/<op>/kernel.py` lists its own in `COMPILATIONS`. Refuses to know what kernels compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ARCHITECTURES = (80, 90, 100)
"""Compute capabilities times ten: A100, H100 and H200, B200."""

SHARED_MEMORY_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
"""What one block may have. Source: CUDA C++ Programming Guide, table of compute capabilities."""


@dataclass(frozen=True)
class Compilation:
    """One specialisation of a kernel."""

    kernel: Any
    """The `triton.jit` function."""
    signature: Mapping[str, str]
    """Type of each argument that is no constexpr, e.g. {"x_ptr": "*bf16", "num_tokens": "i32"}."""
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2
    architectures: tuple[int, ...] = ARCHITECTURES
    """Fewer where an instruction is missing: FP8 products begin at 89."""

    @property
    def name(self) -> str:
        sizes = ",".join(f"{name}={value}" for name, value in self.constexprs.items())
        return f"{self.kernel.__name__}[{sizes}]"

    def compile(self, architecture: int) -> Any:
        """The compiled kernel (`.metadata.shared` in bytes, `.asm["cubin"]`); needs no GPU."""
        types = {name: self.signature.get(name, "constexpr") for name in self.kernel.arg_names}
        constants = {(self.kernel.arg_names.index(name),): value for name, value in self.constexprs.items()}
        # Base pointers come from torch, which aligns them to 16 bytes and more.
        attributes = {
            (index,): [["tt.divisibility", 16]]
            for index, name in enumerate(self.kernel.arg_names)
            if types[name].startswith("*")
        }
        return triton.compile(
            ASTSource(self.kernel, types, constants, attributes),
            target=GPUTarget("cuda", architecture, 32),
            options={"num_warps": self.num_warps, "num_stages": self.num_stages},
        )
