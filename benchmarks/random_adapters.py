"""Generates any number of random adapters, registered under digests and kept in almost no host memory.

All adapters of a type are windows into one random slab, each a step further: different numbers everywhere,
and each takes its own bytes on the device. Only the layout differs by rank, and is made once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from engine.lora.artifact import PackedAdapter
from engine.lora.manifest import STORAGE, Dtype, Manifest, ModuleShape, lay_out
from engine.model.config import ModelConfig
from engine.protocol import AdapterRef

MIXED_RANKS = (8, 16, 32, 64)
"""In turn, where ranks are "mixed": 30 on average."""
STORED: dict[str, Dtype] = {"bf16": "bfloat16", "fp8": "float8_e4m3"}
"""Option -> how an artifact names it."""
WIDTH = 0.02
"""Standard deviation of all numbers: with a scale of 2, a rank of 16 moves a linear's output by a fifth."""
SCALE = 2.0
STRIDE = 64
"""Elements between one adapter's window and the next's."""
SLACK = 4096 * STRIDE
"""Elements drawn beyond the largest adapter: so many windows fit before the slab has to grow."""
TAIL = 1 << 16
"""Elements drawn beyond the last window: an image on a device is a little longer than its slab."""
BASE_DIGEST = hashlib.sha256(b"random base").hexdigest()


@dataclass(frozen=True, slots=True)
class Registered:
    """One adapter that can be requested."""

    ref: AdapterRef
    dtype: str
    number: int

    @property
    def tenant(self) -> str:
        return f"tenant-{self.number}"


def reference(rank: int, dtype: str, number: int) -> AdapterRef:
    """Returns the name of a library's adapter in requests."""
    return AdapterRef(hashlib.sha256(f"{rank} {dtype} {number}".encode()).hexdigest(), rank)


class AdapterLibrary:
    """Adapters on all seven linears of every layer of one base."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self._config = config
        self._seed = seed
        self._manifests: dict[tuple[int, str], Manifest] = {}
        self._numbers: dict[str, np.ndarray] = {}
        self._by_digest: dict[str, Registered] = {}
        self._size = 0

    def register(self, count: int, ranks: Sequence[int], dtype: str = "bf16") -> list[Registered]:
        """`count` adapters, of `ranks` in turn. The same ones as before where the arguments are the same."""
        found = []
        for number in range(count):
            adapter = Registered(reference(ranks[number % len(ranks)], dtype, number), dtype, number)
            rank = adapter.ref.rank
            self._by_digest[adapter.ref.digest] = adapter
            slack = max(SLACK, count * STRIDE)
            self._size = max(self._size, self.manifest(rank, dtype).num_elements + slack + TAIL)
            found.append(adapter)
        return found

    def manifest(self, rank: int, dtype: str) -> Manifest:
        key = rank, dtype
        if key not in self._manifests:
            self._manifests[key] = self._lay_out(rank, dtype)
        return self._manifests[key]

    def num_bytes(self, adapter: Registered) -> int:
        """Bytes of its slab."""
        return self.manifest(adapter.ref.rank, adapter.dtype).num_bytes

    def find(self, digest: str) -> Registered:
        """Raises KeyError when none of that digest is registered."""
        return self._by_digest[digest]

    def packed(self, digest: str) -> PackedAdapter:
        """Raises KeyError when none of that digest is registered."""
        adapter = self._by_digest[digest]
        manifest = self.manifest(adapter.ref.rank, adapter.dtype)
        start = adapter.number * STRIDE
        return PackedAdapter(manifest, self.numbers(adapter.dtype)[start : start + manifest.num_elements])

    def numbers(self, dtype: str) -> np.ndarray:
        """The slab all adapters of a type are windows into. Another one once a larger is needed."""
        numbers = self._numbers.get(dtype)
        if numbers is None or len(numbers) < self._size:
            numbers = self._numbers[dtype] = _DRAW[dtype](np.random.default_rng(self._seed), self._size)
        return numbers

    def _lay_out(self, rank: int, dtype: str) -> Manifest:
        layer = {
            module: ModuleShape(rank, columns, rows, SCALE)
            for module, (rows, columns) in self._config.linear_shapes.items()
        }
        return lay_out([layer] * self._config.num_layers, BASE_DIGEST, STORED[dtype])


def _bf16(rng: np.random.Generator, count: int) -> np.ndarray:
    numbers = WIDTH * rng.standard_normal(count, dtype=np.float32)
    # Truncated, not rounded: these numbers are not compared with others.
    return (numbers.view(np.uint32) >> 16).astype(STORAGE["bfloat16"])


def _fp8(rng: np.random.Generator, count: int) -> np.ndarray:
    """Of either sign, 0.25 to 4; every fourth is 1.4 or 1.5.

    A window has its fp32 scales wherever its layout puts them, on multiples of four bytes. With 0x3b or 0x3c
    for its highest byte any fp32 number is one from 0.002 to 0.03, so that stored weight times scale is
    about `WIDTH` everywhere.
    """
    words = rng.integers(0x28, 0x48, -(-count // 4) * 4, dtype=np.uint8)
    words |= rng.integers(0, 2, len(words), dtype=np.uint8) << 7
    words[3::4] = rng.integers(0x3B, 0x3D, len(words) // 4, dtype=np.uint8)
    return words[:count]


_DRAW: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {"bf16": _bf16, "fp8": _fp8}
