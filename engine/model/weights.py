"""Reads a base model's weights from disk: Hugging Face safetensors, in one file or in shards.

Finds the files, checks every name and shape against the config, reads tensors in the order they are
requested, fuses linear layers that share their input, and computes the base's digest.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.model.checkpoint_quantization import FLOAT8
from engine.model.config import GROUPS, ModelConfig
from engine.model.quantized_tensors import Codes, StoredTensor, read_codes, stored_tensors
from engine.model.shards import WHOLE, Shard, has_bias_here, vocabulary_part, weight_part
from engine.model.staging import DeviceCopies
from kernels.linear_fp8.weight import Fp8Weight
from kernels.linear_int4.weight import Int4Weight

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLES = "*.bin"
"""Names of PyTorch's own format in such folders: pytorch_model.bin, or its shards."""
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)
"""Buffers of old checkpoints that follow from the config."""
_COMPARED_ROWS = 4096
"""Rows of head and embedding compared at a time: 64 MB each for the largest bases."""
_E4M3_NAN = 0x7F
"""Without the sign. The type has no infinities."""
LISTED = 5
"""Names spelled out in an error; the rest is counted."""


def layer_module(layer: int, module: str) -> str:
    """Returns the checkpoint name of a linear, such as "model.layers.0.self_attn.q_proj"."""
    block = "self_attn" if module in GROUPS["qkv"] + GROUPS["o"] else "mlp"
    return f"model.layers.{layer}.{block}.{module}"


def layer_tensor(layer: int, module: str, kind: str = "weight") -> str:
    """Returns the checkpoint name of a linear's tensor, such as "model.layers.0.self_attn.q_proj.weight"."""
    return f"{layer_module(layer, module)}.{kind}"


def expected_tensors(config: ModelConfig) -> dict[str, StoredTensor]:
    """Returns every tensor that a checkpoint of this config must have."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    quantized: dict[str, StoredTensor] = {}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        for module, shape in config.linear_shapes.items():
            if config.has_bias(module):
                shapes[layer_tensor(layer, module, "bias")] = shape[:1]
            name = layer_module(layer, module)
            if config.quantization is None or not config.quantization.covers(name):
                shapes[f"{name}.weight"] = shape
                continue
            for kind, stored in stored_tensors(config.quantization, *shape).items():
                quantized[f"{name}.{kind}"] = stored
        if config.qk_norm:
            shapes[prefix + "self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[prefix + "self_attn.k_norm.weight"] = (config.head_dim,)
    return {name: StoredTensor(shape) for name, shape in shapes.items()} | quantized


def weight_files(base_dir: Path) -> list[Path]:
    """Returns the safetensors files of a checkpoint, in name order.

    Raises:
        ValueError: there are none, only PyTorch pickles, or the index names one that is missing.
    """
    if (base_dir / SINGLE_FILE).exists():
        return [base_dir / SINGLE_FILE]
    index_path = base_dir / INDEX_FILE
    if not index_path.exists():
        pickles = sorted(path.name for path in base_dir.glob(PICKLES))
        if pickles:
            raise ValueError(
                f"{base_dir} has its weights only as PyTorch pickles ({_listing(pickles)}), which are not "
                "read because that may run any code: convert them with transformers, "
                f"AutoModelForCausalLM.from_pretrained({str(base_dir)!r}).save_pretrained(NEW_FOLDER), "
                "and copy the tokenizer's files"
            )
        raise ValueError(f"{base_dir} has neither {SINGLE_FILE} nor {INDEX_FILE}")
    try:
        names = sorted(set(json.loads(index_path.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{INDEX_FILE} has no usable weight_map: {error!r}") from None
    missing = [name for name in names if not (base_dir / name).is_file()]
    if missing:
        raise ValueError(f"{INDEX_FILE} names files that are missing: {_listing(missing)}")
    return [base_dir / name for name in names]


@dataclass(frozen=True, slots=True)
class LinearSource:
    """A checkpoint's weights of one group of linear modules, fused along their outputs."""

    weight: Tensor | Fp8Weight | Int4Weight
    """Floats [N, K] in the model's type, or the checkpoint's own numbers."""
    bias_N: Tensor | None
    """Also None where `weight` holds it: in `Fp8Weight` and `Int4Weight`."""


class Checkpoint:
    """An open, checked checkpoint: tensors are read on request, by any thread."""

    def __init__(
        self,
        owners: dict[str, Any],
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard = WHOLE,
    ) -> None:
        self._owners = owners
        self._config = config
        self._dtype = dtype
        self._to_device = DeviceCopies(device)
        self._shard = shard

    @functools.cached_property
    def head_name(self) -> str:
        """The tensor that hidden states are multiplied with for logits: the embedding where config.json ties
        the two, unless the checkpoint has a head of its own that differs. transformers decides the same way.
        """
        if not self._config.tie_embeddings:
            return HEAD
        if HEAD not in self._owners:
            return EMBEDDING
        embedding, head = (self._owners[name].get_slice(name) for name in (EMBEDDING, HEAD))
        for start in range(0, self._config.vocab_size, _COMPARED_ROWS):
            rows = slice(start, start + _COMPARED_ROWS)
            if not torch.equal(embedding[rows].to(self._dtype), head[rows].to(self._dtype)):
                return HEAD
        return EMBEDDING

    def tensor(self, name: str) -> Tensor:
        """Returns a tensor in the model's type. Raises ValueError where values are not finite."""
        return _finite(name, self._read(name).to(self._dtype))

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Returns rows [start, stop) of a tensor, in the model's type; the rest is not read."""
        part = self._owners[name].get_slice(name)[start:stop]
        return _finite(name, self._to_device(part).to(self._dtype))

    def vocabulary(self, name: str) -> Tensor:
        """Returns the shard's rows of the embedding or the head, with rows of zeros up to the largest
        shard's number.
        """
        shard, vocab_size = self._shard, self._config.vocab_size
        if shard.size == 1:
            return self.tensor(name)
        first, end = vocabulary_part(vocab_size, shard)
        rows_VH = self.rows(name, first, end)
        missing = -(-vocab_size // shard.size) - len(rows_VH)
        return torch.cat((rows_VH, rows_VH.new_zeros(missing, rows_VH.shape[1]))) if missing else rows_VH

    def linear(self, layer: int, group: str) -> LinearSource:
        """Returns the shard's part of the linear modules of a group ("qkv" ... "down"), as the checkpoint
        stores them.

        Raises:
            ValueError: they cannot be fused, or their tensors contradict each other.
        """
        names = [layer_module(layer, module) for module in GROUPS[group]]
        parts = [weight_part(self._config, module, self._shard) for module in GROUPS[group]]
        bias_N = self._bias(names, group, parts)
        quantization = self._config.quantization
        covered = [quantization is not None and quantization.covers(name) for name in names]
        if quantization is None or not any(covered):
            floats = [self._part(f"{name}.weight", part) for name, part in zip(names, parts, strict=True)]
            return LinearSource(torch.cat(floats), bias_N)
        if not all(covered):
            left = [name for name, is_covered in zip(names, covered, strict=True) if not is_covered]
            raise ValueError(
                f"quantization_config leaves {_listing(left)} as floats and quantises others of "
                f"{', '.join(GROUPS[group])}, which are served as one"
            )
        if quantization.layout == FLOAT8:
            stored = [self._float8(name, part) for name, part in zip(names, parts, strict=True)]
            return LinearSource(Fp8Weight.from_checkpoint(stored, bias_N), None)
        codes = [
            read_codes(
                quantization,
                name,
                lambda kind, name=name: self._stored(f"{name}.{kind}"),  # type: ignore[misc]
            ).part(name, *part)
            for name, part in zip(names, parts, strict=True)
        ]
        fused = _fuse(codes, names)
        packed = Int4Weight.from_codes(fused.codes_NK, fused.scale_NG, fused.zero_NG, bias_N, fused.order_K)
        return LinearSource(packed, None)

    def _bias(self, names: list[str], group: str, parts: list[tuple[slice, slice]]) -> Tensor | None:
        modules = GROUPS[group]
        if not all(
            self._config.has_bias(module) and has_bias_here(module, self._shard) for module in modules
        ):
            return None
        return torch.cat(
            [self.tensor(f"{name}.bias")[rows] for name, (rows, _) in zip(names, parts, strict=True)]
        )

    def _float8(self, name: str, part: tuple[slice, slice]) -> tuple[Tensor, Tensor]:
        values_NK, scale = self._stored(f"{name}.weight"), self._stored(f"{name}.weight_scale")
        if scale.numel() > 1:  # one for each output
            scale = scale[part[0]]
        return values_NK[part].contiguous(), scale

    def dense(self, layer: int, module: str) -> Tensor:
        """Returns one linear's weight [N, K] in the model's type, in whatever form the checkpoint
        stores it.
        """
        name, quantization = layer_module(layer, module), self._config.quantization
        if quantization is None or not quantization.covers(name):
            return self.tensor(f"{name}.weight")
        if quantization.layout == FLOAT8:
            part = self._stored(f"{name}.weight"), self._stored(f"{name}.weight_scale")
            weight = Fp8Weight.from_checkpoint([part])
            return (weight.values_NK.float() * weight.scale[:, None]).to(self._dtype)
        codes = read_codes(quantization, name, lambda kind: self._stored(f"{name}.{kind}"))
        packed = Int4Weight.from_codes(codes.codes_NK, codes.scale_NG, codes.zero_NG, None, codes.order_K)
        wide = packed.dequantize()
        if codes.order_K is not None:
            # Column k of the codes multiplies input order_K[k].
            wide = torch.empty_like(wide).index_copy_(1, codes.order_K, wide)
        return wide.to(self._dtype)

    def _part(self, name: str, part: tuple[slice, slice]) -> Tensor:
        """Returns a part of a matrix in the model's type; the rest is not read."""
        if self._shard.size == 1:
            return self.tensor(name)
        found = self._owners[name].get_slice(name)[part]
        return _finite(name, self._to_device(found).to(self._dtype))

    def _stored(self, name: str) -> Tensor:
        """Returns a tensor as it is in the file. Raises ValueError where values are not finite."""
        return _finite(name, self._read(name))

    def _read(self, name: str) -> Tensor:
        return self._to_device(self._owners[name].get_tensor(name))


def _finite(name: str, tensor: Tensor) -> Tensor:
    """Returns the tensor. Raises ValueError for NaN and infinities, one of which makes every response
    nonsense.
    """
    if tensor.dtype is torch.float8_e4m3fn:
        finite = not bool((tensor.view(torch.uint8) & _E4M3_NAN == _E4M3_NAN).any())
    elif tensor.is_floating_point():
        # Both propagate NaN; several times as fast as `isfinite`, which writes a tensor.
        low, high = tensor.aminmax()
        finite = bool(low.isfinite() & high.isfinite())
    else:
        finite = True
    if not finite:
        reason = (
            "has values that are not finite (NaN or infinity): the checkpoint is damaged, download it again"
        )
        raise ValueError(f"{name} {reason}")
    return tensor


def _fuse(parts: list[Codes], names: list[str]) -> Codes:
    first = parts[0]
    for part, name in zip(parts[1:], names[1:], strict=True):
        if (part.order_K is None) != (first.order_K is None) or (
            part.order_K is not None and first.order_K is not None and not part.order_K.equal(first.order_K)
        ):
            raise ValueError(f"{name}: g_idx differs from that of {names[0]}, which reads the same inputs")
        if part.scale_NG.dtype != first.scale_NG.dtype:
            raise ValueError(f"{name}: scales are {part.scale_NG.dtype}, those of {names[0]} are not")
    zeros = [part.zero_NG for part in parts if part.zero_NG is not None]
    return Codes(
        torch.cat([part.codes_NK for part in parts]),
        torch.cat([part.scale_NG for part in parts]),
        torch.cat(zeros) if zeros else None,
        first.order_K,
    )


@contextmanager
def open_checkpoint(
    base_dir: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device, shard: Shard = WHOLE
) -> Iterator[Checkpoint]:
    """Opens the files and checks names and shapes; tensors are returned as `dtype` on `device`, linears and
    vocabularies only the shard's part of them. `config` is the whole model's.

    Raises:
        ValueError: a file is unreadable, or tensors are missing, unexpected, of another shape or not floats.
    """
    with ExitStack() as stack:
        owners: dict[str, Any] = {}
        for path in weight_files(base_dir):
            try:
                opened = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{path.name} is not a readable safetensors file: {error}") from None
            owners.update(dict.fromkeys(opened.keys(), opened))
        _check_tensors(owners, config)
        yield Checkpoint(owners, config, dtype, device, shard)


def _check_tensors(owners: dict[str, Any], config: ModelConfig) -> None:
    expected = expected_tensors(config)
    missing = [name for name in expected if name not in owners]
    if missing:
        raise ValueError(f"the checkpoint lacks tensors that config.json requires: {_listing(missing)}")
    if HEAD in owners:  # a checkpoint may have it although config.json ties it
        expected[HEAD] = expected[EMBEDDING]
    extra = [name for name in owners if name not in expected]
    extra = [name for name in extra if not name.endswith(IGNORED_SUFFIXES)]
    if config.quantization is not None:
        # AutoGPTQ writes a bias of zeros for every module.
        extra = [name for name in extra if not (name.endswith(".bias") and _is_zero(owners, name))]
    if extra:
        raise ValueError(f"the checkpoint has tensors that config.json does not explain: {_listing(extra)}")
    for name, stored in expected.items():
        found = owners[name].get_slice(name)
        shape = tuple(found.get_shape())
        if not stored.admits(shape):
            raise ValueError(f"{name} has shape {shape}, config.json implies {stored.shape}")
        if found.get_dtype() not in stored.types:
            wanted = ", ".join(stored.types)
            raise ValueError(f"{name} is stored as {found.get_dtype()}; supported there: {wanted}")


def _is_zero(owners: dict[str, Any], name: str) -> bool:
    return not owners[name].get_tensor(name).any()


def _listing(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:LISTED])
    return shown if len(names) <= LISTED else f"{shown} and {len(names) - LISTED} more"


def base_files(base_dir: Path) -> list[Path]:
    """Returns the files that a base's digest is of. Raises ValueError as `weight_files` does."""
    return [base_dir / "config.json", *weight_files(base_dir)]


def base_digest(base_dir: Path) -> str:
    """Returns the hex SHA-256 over config.json and the weight files: adapters are packed against it."""
    digest = hashlib.sha256()
    for path in base_files(base_dir):
        digest.update(f"{path.name}:{path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
