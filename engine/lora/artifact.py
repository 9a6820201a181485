"""Reads and writes packed adapters: the one on-disk layout that kernels read.

A file is `magic | version | manifest length | manifest (JSON) | zeros to 64 bytes | slab`. The slab holds,
layer by layer and group by group, the A matrices of a group's modules stacked along the rank `[sum of ranks,
K]` (so that the input is read once for all of them), then each module's B, rank-major `[rank, N]` (so that N
is contiguous). Ranks are the true ones; an absent module takes no bytes. Every matrix starts on a multiple of
64 bytes. Scales stay beside the weights, in fp32: folded into bf16 they would be rounded.

Weights are bf16, fp32 or FP8 (e4m3). FP8 has two fp32 scales for every rank, one for A's row and one for B's:
a group's scales follow its matrices, all of A's, then all of B's. The true weight is the stored one times its
row's scale.

Versions: bf16 and fp32 are written as version 1, as they always were, so that packed adapters keep their
digest; FP8 is version 2, which releases that cannot read it reject by number.

The digest is the SHA-256 of the file's bytes. Only the standard library, numpy and msgspec are imported,
because the API reads artifacts too.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from engine.files import replacing
from engine.lora.manifest import (
    ALIGNMENT,
    GROUPS,
    MAX_RANK,
    SCALED,
    STORAGE,
    ArtifactError,
    Dtype,
    GroupEntry,
    Manifest,
    ModuleEntry,
    ModuleShape,
    aligned,
    lay_out,
    verify,
)

__all__ = [
    "ALIGNMENT",
    "GROUPS",
    "MAX_RANK",
    "STORAGE",
    "SUFFIX",
    "ArtifactError",
    "Dtype",
    "GroupEntry",
    "LoraPair",
    "Manifest",
    "ModuleEntry",
    "PackedAdapter",
    "artifact_path",
    "read_manifest",
]

MAGIC = b"RTSTOCKA"
VERSIONS: dict[str, int] = {"bfloat16": 1, "float32": 1, "float8_e4m3": 2}
SUFFIX = ".rsa"
READ_BY_ALL = 0o644
"""Permissions: the packer writes the file, and engines of another user read it."""
MAX_MANIFEST_BYTES = 16 << 20

_decoder = msgspec.json.Decoder(Manifest)
_PREFIX = struct.Struct("<8sII")
_PIECE_BYTES = 4 << 20
"""Bytes read and hashed at a time: they are still in the processor's cache when hashed."""

Allocate = Callable[[Manifest], np.ndarray]
"""Returns memory for a slab: 1-D uint8 of at least `manifest.num_bytes`."""


@dataclass(frozen=True, slots=True)
class LoraPair:
    """One module's weights as stored in an artifact: `a` [rank, K], `b` [rank, N] (PEFT's B transposed)."""

    a: np.ndarray
    b: np.ndarray
    scale: float
    a_scale: np.ndarray | None = None
    """fp32 [rank], only with FP8: the true row of A is the stored one times this."""
    b_scale: np.ndarray | None = None


@dataclass(frozen=True)
class PackedAdapter:
    """A manifest and its slab: 1-D, raw words of bf16 or FP8, or fp32."""

    manifest: Manifest
    slab: np.ndarray

    @classmethod
    def build(cls, layers: Sequence[Mapping[str, LoraPair]], base_digest: str, dtype: Dtype) -> PackedAdapter:
        """Lays out `layers[i][module name]`; arrays must already be of the storage type
        (`STORAGE[dtype]`).
        """
        shapes = [{name: _shape(name, pair) for name, pair in layer.items()} for layer in layers]
        manifest = lay_out(shapes, base_digest, dtype)
        packed = cls(manifest, np.zeros(manifest.num_elements, STORAGE[dtype]))
        for index, (layer, entries) in enumerate(zip(layers, manifest.layers, strict=True)):
            for group, entry in entries.items():
                packed._fill(index, group, [(name, layer[name]) for name in entry.modules])
        return packed

    def _fill(self, layer: int, group: str, pairs: Sequence[tuple[str, LoraPair]]) -> None:
        storage = self.slab.dtype
        rows = [pair.a for _, pair in pairs]
        assert all(row.dtype == storage for row in rows), "arrays must be of the storage type"
        self.a(layer, group)[:] = np.concatenate(rows)
        for name, pair in pairs:
            assert pair.b.dtype == storage, "arrays must be of the storage type"
            self.b(layer, group, name)[:] = pair.b
            scaled = pair.a_scale is not None and pair.b_scale is not None
            assert scaled == (self.manifest.dtype == SCALED), f"{name}: FP8 has scales, other types have none"
        if self.manifest.dtype == SCALED:
            scales = self.scales(layer, group)
            scales[0] = np.concatenate([pair.a_scale for _, pair in pairs])
            scales[1] = np.concatenate([pair.b_scale for _, pair in pairs])

    def groups(self) -> Iterator[tuple[int, str, GroupEntry]]:
        """Yields (layer, group, entry) for every group of the adapter."""
        for index, layer in enumerate(self.manifest.layers):
            for group, entry in layer.items():
                yield index, group, entry

    def a(self, layer: int, group: str) -> np.ndarray:
        """Returns a view of the stacked A of a group that the adapter has: [sum of ranks, K]."""
        entry = self.manifest.layers[layer][group]
        return self._matrix(entry.offset, entry.rank, entry.in_features)

    def b(self, layer: int, group: str, module: str) -> np.ndarray:
        """Returns a view of one module's B: [rank, N]."""
        entry = self.manifest.layers[layer][group].modules[module]
        return self._matrix(entry.offset, entry.rank, entry.out_features)

    def scales(self, layer: int, group: str) -> np.ndarray:
        """Returns a view of an FP8 group's scales: fp32 [2, sum of ranks], of A's rows and of B's."""
        entry = self.manifest.layers[layer][group]
        assert entry.scales is not None, f"{self.manifest.dtype} has no scales"
        rank = entry.rank
        return self.slab[entry.scales : entry.scales + 8 * rank].view(np.dtype("<f4")).reshape(2, rank)

    def _matrix(self, offset: int, rows: int, columns: int) -> np.ndarray:
        return self.slab[offset : offset + rows * columns].reshape(rows, columns)

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of the file's bytes, whether or not it has been written."""
        sha = hashlib.sha256(_header(self.manifest))
        sha.update(self.slab.data)
        return sha.hexdigest()

    def write(self, path: Path) -> None:
        """Writes atomically: opening `path`, even after a crash, finds the whole file or none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, READ_BY_ALL) as file:
            file.write(_header(self.manifest))
            file.write(self.slab.data)

    @classmethod
    def read(
        cls, path: Path, expected_digest: str | None = None, allocate: Allocate | None = None
    ) -> PackedAdapter:
        """Reads and verifies a file. Raises ArtifactError (damaged, or not `expected_digest`),
        FileNotFoundError.

        The slab is read, not mapped: what was verified must be what is later copied to the device. It goes
        into the memory that `allocate` returns; exceptions of `allocate` are passed on.
        """
        with path.open("rb") as file:
            manifest, start = _read_header(file)
            size = os.fstat(file.fileno()).st_size
            if size != start + manifest.num_bytes:
                raise ArtifactError("size", f"{size} bytes, the manifest says {start + manifest.num_bytes}")
            memory = np.empty(manifest.num_bytes, np.uint8) if allocate is None else allocate(manifest)
            memory = memory[: manifest.num_bytes]
            digest = _read_slab(file, manifest, memory)
        packed = cls(manifest, memory.view(STORAGE[manifest.dtype]))
        vars(packed)["digest"] = digest
        if expected_digest is not None and digest != expected_digest:
            raise ArtifactError("digest", f"content is {digest}, expected {expected_digest}")
        return packed


def artifact_path(directory: Path, digest: str) -> Path:
    """Returns the path of a digest's artifact: fanned out so that no folder grows without bound."""
    return directory / digest[:2] / f"{digest}{SUFFIX}"


def read_manifest(path: Path) -> Manifest:
    """Returns the verified manifest, without reading the slab. Raises ArtifactError, FileNotFoundError."""
    with path.open("rb") as file:
        return _read_header(file)[0]


def _shape(name: str, pair: LoraPair) -> ModuleShape:
    rank, out_features = pair.b.shape
    in_features = pair.a.shape[1]
    assert pair.a.shape == (rank, in_features), f"{name}: A and B do not fit one another"
    return ModuleShape(rank, in_features, out_features, pair.scale)


def _header(manifest: Manifest) -> bytes:
    text = msgspec.json.encode(manifest)
    header = _PREFIX.pack(MAGIC, VERSIONS[manifest.dtype], len(text)) + text
    return header.ljust(aligned(len(header), ALIGNMENT), b"\0")


def _read_header(file: BinaryIO) -> tuple[Manifest, int]:
    """Returns the verified manifest and the offset of the slab; leaves the file there."""
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size or not prefix.startswith(MAGIC):
        raise ArtifactError("magic", "not a packed adapter")
    _, version, length = _PREFIX.unpack(prefix)
    if version not in VERSIONS.values():
        raise ArtifactError("version", f"{version}, this release reads {sorted(set(VERSIONS.values()))}")
    if length > MAX_MANIFEST_BYTES:
        raise ArtifactError("manifest", f"{length} bytes long, at most {MAX_MANIFEST_BYTES} are allowed")
    text = file.read(length)
    if len(text) != length:
        raise ArtifactError("manifest", "the file ends inside it")
    try:
        manifest = _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise ArtifactError("manifest", str(error)) from error
    if version != VERSIONS[manifest.dtype]:
        expected = VERSIONS[manifest.dtype]
        raise ArtifactError("version", f"{version}, but {manifest.dtype} is written as {expected}")
    verify(manifest)
    header = _header(manifest)
    file.seek(0)
    if file.read(len(header)) != header:
        # One content, one digest: the same manifest must not be spelled in two ways.
        raise ArtifactError("manifest", "not in canonical form")
    return manifest, len(header)


def _read_slab(file: BinaryIO, manifest: Manifest, memory: np.ndarray) -> str:
    """Fills `memory` from the file, which is positioned at the slab. Returns the digest of header
    and slab.
    """
    sha = hashlib.sha256(_header(manifest))
    view = memory.data.cast("B")
    for start in range(0, len(view), _PIECE_BYTES):
        piece = view[start : start + _PIECE_BYTES]
        if file.readinto(piece) != len(piece):  # type: ignore[attr-defined]
            raise ArtifactError("size", "the file shrank while it was read")
        sha.update(piece)
    return sha.hexdigest()
