"""The packed adapter: the one on-disk layout that kernels read.

A file is `magic | version | manifest length | manifest (JSON) | zeros to 64 bytes | slab`. The slab holds,
layer by layer and group by group, the A matrices of a group's modules stacked along the rank `[sum of ranks,
K]` (so that the input is read once for all of them), then each module's B, rank-major `[rank, N]` (so that N
is contiguous). Ranks are the true ones; an absent module takes no bytes. Every matrix starts on a multiple of
64 bytes. Scales stay beside the weights, in fp32: folded into bf16 they would be rounded.

Owns the layout, its checks and the adapter's digest (SHA-256 of the file's bytes). Refuses to know PEFT,
torch, and which base is being served: the API reads artifacts too, so that only the standard library, numpy
and msgspec are used.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec
import numpy as np

GROUPS: dict[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""Linear modules by the input they share, in the order of the slab."""

MAGIC = b"RTSTOCKA"
VERSION = 1
SUFFIX = ".rsa"
ALIGNMENT = 64
"""Bytes: of the slab in the file and of every matrix in the slab."""
MAX_MANIFEST_BYTES = 16 << 20
MAX_RANK = 1024

Dtype = Literal["bfloat16", "float32"]

STORAGE: dict[str, np.dtype] = {"bfloat16": np.dtype("<u2"), "float32": np.dtype("<f4")}
"""numpy has no bfloat16: its raw 16-bit words are kept."""

_PREFIX = struct.Struct("<8sII")


class ArtifactError(ValueError):
    """A packed adapter is damaged, foreign or not what was asked for. `field` names what is wrong."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class ModuleEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One linear module's share of a group."""

    rank: int
    scale: float
    """Exactly representable in fp32."""
    out_features: int
    offset: int
    """Of B, in elements from the slab's start."""


class GroupEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The modules of one group that the adapter has; never empty."""

    in_features: int
    offset: int
    """Of the stacked A, in elements from the slab's start."""
    modules: dict[str, ModuleEntry]

    @property
    def rank(self) -> int:
        """Rows of the stacked A."""
        return sum(module.rank for module in self.modules.values())


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands in the slab and where."""

    dtype: Dtype
    base_digest: str
    """Of the base the adapter was packed against."""
    num_elements: int
    layers: tuple[dict[str, GroupEntry], ...]
    """By layer index; an untouched layer is an empty dict."""

    @property
    def rank(self) -> int:
        """Largest rank of any module."""
        ranks = (m.rank for layer in self.layers for group in layer.values() for m in group.modules.values())
        return max(ranks, default=0)

    @property
    def num_bytes(self) -> int:
        """Of the slab."""
        return self.num_elements * STORAGE[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class LoraPair:
    """One module's weights as they go into an artifact: `a` [rank, K], `b` [rank, N] (that is, PEFT's B
    transposed)."""

    a: np.ndarray
    b: np.ndarray
    scale: float


@dataclass(frozen=True)
class PackedAdapter:
    """A manifest and its slab: 1-D, bf16 as raw uint16 words or fp32."""

    manifest: Manifest
    slab: np.ndarray

    @classmethod
    def build(cls, layers: Sequence[Mapping[str, LoraPair]], base_digest: str, dtype: Dtype) -> PackedAdapter:
        """Lay out `layers[i][module name]`; arrays must already be of the storage type (`STORAGE[dtype]`)."""
        storage = STORAGE[dtype]
        manifest = _lay_out(layers, base_digest, dtype)
        packed = cls(manifest, np.zeros(manifest.num_elements, storage))
        for index, (layer, entries) in enumerate(zip(layers, manifest.layers, strict=True)):
            for group, entry in entries.items():
                rows = [layer[name].a for name in entry.modules]
                assert all(row.dtype == storage for row in rows), "arrays must be of the storage type"
                packed.a(index, group)[:] = np.concatenate(rows)
                for name in entry.modules:
                    assert layer[name].b.dtype == storage, "arrays must be of the storage type"
                    packed.b(index, group, name)[:] = layer[name].b
        return packed

    def a(self, layer: int, group: str) -> np.ndarray:
        """View of the stacked A of a group the adapter has: [sum of ranks, K]."""
        entry = self.manifest.layers[layer][group]
        return self._matrix(entry.offset, entry.rank, entry.in_features)

    def b(self, layer: int, group: str, module: str) -> np.ndarray:
        """View of one module's B: [rank, N]."""
        entry = self.manifest.layers[layer][group].modules[module]
        return self._matrix(entry.offset, entry.rank, entry.out_features)

    def _matrix(self, offset: int, rows: int, columns: int) -> np.ndarray:
        return self.slab[offset : offset + rows * columns].reshape(rows, columns)

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of the file's bytes, whether or not it has been written."""
        sha = hashlib.sha256(_header(self.manifest))
        sha.update(self.slab.data)
        return sha.hexdigest()

    def write(self, path: Path) -> None:
        """Write atomically: whoever opens `path`, even after a crash, finds the whole file or none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), 0o644)  # written by the packer, read by engines of another user
                file.write(_header(self.manifest))
                file.write(self.slab.data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    @classmethod
    def read(cls, path: Path, expected_digest: str | None = None) -> PackedAdapter:
        """Read and verify. Raises ArtifactError (damaged, or not `expected_digest`), FileNotFoundError.

        The slab is read, not mapped: what was verified must be what is later copied to the device.
        """
        with path.open("rb") as file:
            manifest, start = _read_header(file)
            size = os.fstat(file.fileno()).st_size
            if size != start + manifest.num_bytes:
                raise ArtifactError("size", f"{size} bytes, the manifest says {start + manifest.num_bytes}")
            slab = np.empty(manifest.num_elements, STORAGE[manifest.dtype])
            if file.readinto(slab.data.cast("B")) != manifest.num_bytes:  # type: ignore[attr-defined]
                raise ArtifactError("size", "the file shrank while it was read")
        packed = cls(manifest, slab)
        if expected_digest is not None and packed.digest != expected_digest:
            raise ArtifactError("digest", f"content is {packed.digest}, expected {expected_digest}")
        return packed


def artifact_path(directory: Path, digest: str) -> Path:
    """Where the artifact of a digest lives: fanned out so that no folder grows without bound."""
    return directory / digest[:2] / f"{digest}{SUFFIX}"


def read_manifest(path: Path) -> Manifest:
    """The verified manifest alone, without reading the slab. Raises ArtifactError, FileNotFoundError."""
    with path.open("rb") as file:
        return _read_header(file)[0]


def _header(manifest: Manifest) -> bytes:
    text = msgspec.json.encode(manifest)
    header = _PREFIX.pack(MAGIC, VERSION, len(text)) + text
    return header + bytes(-len(header) % ALIGNMENT)


def _read_header(file: BinaryIO) -> tuple[Manifest, int]:
    """The manifest, verified, and the offset of the slab; leaves the file there."""
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size or not prefix.startswith(MAGIC):
        raise ArtifactError("magic", "not a packed adapter")
    _, version, length = _PREFIX.unpack(prefix)
    if version != VERSION:
        raise ArtifactError("version", f"{version}, this release reads {VERSION}")
    if length > MAX_MANIFEST_BYTES:
        raise ArtifactError("manifest", f"{length} bytes long, at most {MAX_MANIFEST_BYTES} are allowed")
    text = file.read(length)
    if len(text) != length:
        raise ArtifactError("manifest", "the file ends inside it")
    try:
        manifest = msgspec.json.decode(text, type=Manifest)
    except msgspec.DecodeError as error:
        raise ArtifactError("manifest", str(error)) from error
    _verify(manifest)
    header = _header(manifest)
    file.seek(0)
    if file.read(len(header)) != header:
        # One content, one digest: no second spelling of the same manifest.
        raise ArtifactError("manifest", "not in canonical form")
    return manifest, len(header)


def _groups_of(names: Mapping[str, object]) -> Iterator[tuple[str, list[str]]]:
    """Groups that have any of `names`, with those modules, in slab order."""
    for group, modules in GROUPS.items():
        present = [name for name in modules if name in names]
        if present:
            yield group, present


def _aligned(offset: int, itemsize: int) -> int:
    unit = ALIGNMENT // itemsize
    return -(-offset // unit) * unit


def _lay_out(layers: Sequence[Mapping[str, LoraPair]], base_digest: str, dtype: Dtype) -> Manifest:
    itemsize = STORAGE[dtype].itemsize
    entries: list[dict[str, GroupEntry]] = []
    end = 0
    for layer in layers:
        groups: dict[str, GroupEntry] = {}
        known = 0
        for group, names in _groups_of(layer):
            known += len(names)
            in_features = layer[names[0]].a.shape[1]
            offset = _aligned(end, itemsize)
            end = offset + in_features * sum(layer[name].a.shape[0] for name in names)
            modules: dict[str, ModuleEntry] = {}
            for name in names:
                pair = layer[name]
                rank, out_features = pair.b.shape
                assert pair.a.shape == (rank, in_features), f"{name}: A and B do not fit one another"
                start = _aligned(end, itemsize)
                modules[name] = ModuleEntry(rank, float(np.float32(pair.scale)), out_features, start)
                end = start + rank * out_features
            groups[group] = GroupEntry(in_features, offset, modules)
        assert known == len(layer), f"unknown modules among {sorted(layer)}"
        entries.append(groups)
    manifest = Manifest(dtype, base_digest, end, tuple(entries))
    _verify(manifest)
    return manifest


def _verify(manifest: Manifest) -> None:
    """Everything a reader will rely on: names, ranks, scales, and matrices that tile the slab in order."""
    itemsize = STORAGE[manifest.dtype].itemsize
    end = 0
    if not manifest.layers:
        raise ArtifactError("layers", "there are none")
    for index, layer in enumerate(manifest.layers):
        where = f"layers[{index}]"
        _verify_order(where, layer, tuple(GROUPS))
        for group, entry in layer.items():
            where = f"layers[{index}].{group}"
            _verify_order(f"{where}.modules", entry.modules, GROUPS[group])
            if not entry.modules:
                raise ArtifactError(f"{where}.modules", "a group without modules must be absent")
            if entry.in_features < 1:
                raise ArtifactError(f"{where}.in_features", f"{entry.in_features} is not positive")
            for name, module in entry.modules.items():
                _verify_module(f"{where}.{name}", module)
            _verify_offset(where, entry.offset, _aligned(end, itemsize))
            end = entry.offset + entry.rank * entry.in_features
            for name, module in entry.modules.items():
                _verify_offset(f"{where}.{name}", module.offset, _aligned(end, itemsize))
                end = module.offset + module.rank * module.out_features
    if manifest.num_elements != end:
        raise ArtifactError("num_elements", f"{manifest.num_elements}, the matrices end at {end}")
    if end == 0:
        raise ArtifactError("layers", "no layer has any module")


def _verify_order(where: str, found: Mapping[str, object], known: Sequence[str]) -> None:
    unknown = [name for name in found if name not in known]
    if unknown:
        raise ArtifactError(where, f"unknown {unknown[0]!r}")
    if list(found) != [name for name in known if name in found]:
        raise ArtifactError(where, f"must be in the order {', '.join(known)}")


def _verify_module(where: str, module: ModuleEntry) -> None:
    if not 1 <= module.rank <= MAX_RANK:
        raise ArtifactError(f"{where}.rank", f"{module.rank} is not between 1 and {MAX_RANK}")
    if module.out_features < 1:
        raise ArtifactError(f"{where}.out_features", f"{module.out_features} is not positive")
    # Beyond fp32's range or precision the kernels would compute with another number than the one written.
    if not math.isfinite(module.scale) or abs(module.scale) > float(np.finfo(np.float32).max):
        raise ArtifactError(f"{where}.scale", f"{module.scale} is not a finite fp32 number")
    if float(np.float32(module.scale)) != module.scale:
        raise ArtifactError(f"{where}.scale", f"{module.scale} is not exact in fp32")


def _verify_offset(where: str, found: int, expected: int) -> None:
    if found != expected:
        raise ArtifactError(f"{where}.offset", f"{found}, the layout puts it at {expected}")
