"""Computes the reference: the unquantised base with the adapter as it was uploaded, in fp32.

The forward pass is streamed from the checkpoint on disk: one layer's weights are in memory at a time, and the
hidden states of a pass's samples are carried from layer to layer, for the base alone and with the adapter
side by side. Memory is bounded by the largest layer and by `PASS_BYTES`, whatever the model and the number of
samples: more samples take more passes. Embeddings and the output head are read by rows.

It shares nothing with the serving path but the reading of the checkpoint and the table of rotations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from adapters.calibration.contribution import Contribution
from adapters.calibration.memory import MemoryWatch
from adapters.calibration.samples import Sample
from adapters.calibration.scores import Scores
from adapters.calibration.source import Pair, SourceAdapter, open_source
from engine.lora.artifact import PackedAdapter
from engine.model.config import ModelConfig, load_config
from engine.model.rope import RotaryTable
from engine.model.weights import EMBEDDING, Checkpoint, layer_module, open_checkpoint

PASS_BYTES = 256 << 20
"""Bytes of the hidden states of one pass."""
CHUNK_BYTES = 64 << 20
"""Bytes that a layer needs for the rows it processes at a time, and of the rows of the head read at a
time.
"""
STREAMS = {"base": 0.0, "adapter": 1.0}
"""Factor of the adapter's scale, by stream: the base alone, and the base with the adapter."""
DOUBLED = {"doubled": 2.0}
"""Shows a wrong alpha, rank or rsLoRA setting: with a scale that is too small, an adapter does better at
twice the scale.
"""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one decoder layer in fp32, by module."""

    input_norm_H: Tensor
    post_norm_H: Tensor
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None
    linears: dict[str, tuple[Tensor, Tensor | None]]
    """By module: weight [N, K] and bias."""


def passes(samples: Sequence[Sample], config: ModelConfig, pass_bytes: int = PASS_BYTES) -> list[range]:
    """Returns the samples of each pass through the model; at least one each."""
    per_token = len(STREAMS | DOUBLED) * config.hidden_size * 4
    found, first, num_tokens = [], 0, 0
    for place, sample in enumerate(samples):
        if place > first and (num_tokens + len(sample.token_ids)) * per_token > pass_bytes:
            found.append(range(first, place))
            first, num_tokens = place, 0
        num_tokens += len(sample.token_ids)
    found.append(range(first, len(samples)))
    return found


class Reference:
    """An open checkpoint and adapter, ready for passes. Use it as a context manager.

    Args:
        artifacts: packed forms by dtype, whose rounding errors are measured on the way; None: they are not.
        doubled: also score the adapter at twice its scale.
        base: also score the base alone.
    """

    def __init__(
        self,
        base_dir: Path,
        peft_dir: Path,
        artifacts: Mapping[str, PackedAdapter] | None = None,
        device: torch.device | str = "cpu",
        *,
        doubled: bool = False,
        base: bool = True,
    ) -> None:
        self.config = load_config(base_dir)
        wanted = {"base": base, "adapter": True, "doubled": doubled}
        self._streams = {name: factor for name, factor in (STREAMS | DOUBLED).items() if wanted[name]}
        self.memory = MemoryWatch()
        self.device = torch.device(device)
        self.contribution = Contribution(artifacts or {}, self.device)
        self._base_dir, self._peft_dir = base_dir, peft_dir
        self._rotary = RotaryTable(self.config, self.device)
        self._open = ExitStack()

    def __enter__(self) -> Reference:
        """Raises ValueError for a checkpoint that cannot be read, SourceInvalid for such an adapter."""
        opened = open_checkpoint(self._base_dir, self.config, torch.float32, self.device)
        self._checkpoint: Checkpoint = self._open.enter_context(opened)
        source = open_source(self._peft_dir, self.config, self.device)
        self._source: SourceAdapter = self._open.enter_context(source)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def num_steps(self) -> int:
        """Returns the steps of a pass: the layers, and the head."""
        return self.config.num_layers + 1

    @torch.inference_mode()
    def begin(self, samples: Sequence[Sample]) -> Pass:
        """Returns the samples' embeddings, in every stream."""
        ids = torch.tensor([token for sample in samples for token in sample.token_ids])
        wanted, places = ids.unique(return_inverse=True)
        name, width = EMBEDDING, self.config.hidden_size
        rows = torch.empty(len(wanted), width)
        step = max(1, CHUNK_BYTES // (4 * width))
        for first in range(0, self.config.vocab_size, step):
            inside = (wanted >= first) & (wanted < first + step)
            if bool(inside.any()):
                part = self._checkpoint.rows(name, first, min(first + step, self.config.vocab_size))
                rows[inside] = part[(wanted[inside] - first).to(part.device)].cpu()
        hidden_TH = rows[places].to(self.device)
        return Pass(list(samples), {stream: hidden_TH.clone() for stream in self._streams})

    @torch.inference_mode()
    def layer(self, states: Pass, index: int) -> None:
        """Takes every stream through one layer, whose weights are read and freed."""
        weights, pairs = self._read_layer(index), self._source.layer(index)
        self.memory.look()
        self.contribution.begin_layer(index, pairs)
        for rows in states.chunks(self._rows_at_a_time()):
            for stream in self._streams:
                self._decode(weights, pairs, states, stream, rows)
            self.memory.look()

    @torch.inference_mode()
    def scores(self, states: Pass) -> dict[str, list[Scores]]:
        """Returns scores by stream for every sample: each scored token's log probability and the most likely
        token. The head is read in parts.
        """
        norm_H = self._checkpoint.tensor("model.norm.weight")
        name = self._checkpoint.head_name
        # A token is predicted by the state before it.
        places = torch.cat([torch.arange(r.start + s.start - 1, r.stop - 1) for s, r in states.each()])
        targets = torch.tensor([token for s in states.samples for token in s.token_ids[s.start :]])
        found = {
            stream: _Best(self._norm(hidden[places.to(self.device)], norm_H), targets.to(self.device))
            for stream, hidden in states.hidden.items()
        }
        # A part's size counts its own bytes, and the logits of all positions on it.
        step = max(1, CHUNK_BYTES // (4 * max(self.config.hidden_size, len(places))))
        for first in range(0, self.config.vocab_size, step):
            head_VH = self._checkpoint.rows(name, first, min(first + step, self.config.vocab_size))
            for best in found.values():
                best.add(first, head_VH)
            self.memory.look()
        sizes = [sample.num_scored for sample in states.samples]
        return {stream: best.split(sizes) for stream, best in found.items()}

    def _read_layer(self, index: int) -> LayerWeights:
        config, prefix = self.config, f"model.layers.{index}."
        heads = ("q_norm", "k_norm") if config.qk_norm else ()
        of_heads = {name: self._checkpoint.tensor(f"{prefix}self_attn.{name}.weight") for name in heads}
        linears = {}
        for module in config.linear_shapes:
            name = layer_module(index, module)
            bias_N = self._checkpoint.tensor(f"{name}.bias") if config.has_bias(module) else None
            linears[module] = self._checkpoint.dense(index, module), bias_N
        return LayerWeights(
            input_norm_H=self._checkpoint.tensor(prefix + "input_layernorm.weight"),
            post_norm_H=self._checkpoint.tensor(prefix + "post_attention_layernorm.weight"),
            q_norm_D=of_heads.get("q_norm"),
            k_norm_D=of_heads.get("k_norm"),
            linears=linears,
        )

    def _decode(
        self, weights: LayerWeights, adapter: dict[str, Pair], states: Pass, stream: str, rows: list[range]
    ) -> None:
        """Runs one layer over some whole samples, in place."""
        config, factor = self.config, self._streams[stream]
        hidden = states.hidden[stream][rows[0].start : rows[-1].stop]

        def linear(module: str, x: Tensor) -> Tensor:
            weight_NK, bias_N = weights.linears[module]
            y = F.linear(x, weight_NK, bias_N)
            if factor and module in adapter:
                a_RK, b_NR, scale = adapter[module]
                delta = F.linear(F.linear(x, a_RK), b_NR).mul_(factor * scale)
                if factor == 1:
                    self.contribution.add(module, x, delta, y)
                y = y.add_(delta)
            return y

        x = self._norm(hidden, weights.input_norm_H)
        lengths = [len(row) for row in rows]
        positions = torch.cat([torch.arange(length) for length in lengths]).to(self.device)
        rotary = self._rotary.rows(positions, max(lengths) - 1)
        q = self._heads(linear("q_proj", x), weights.q_norm_D, rotary)
        k = self._heads(linear("k_proj", x), weights.k_norm_D, rotary)
        v = linear("v_proj", x).unflatten(1, (config.num_kv_heads, -1))
        hidden += linear("o_proj", _attention(q, k, v, lengths))
        x = self._norm(hidden, weights.post_norm_H)
        hidden += linear("down_proj", F.silu(linear("gate_proj", x)).mul_(linear("up_proj", x)))

    def _norm(self, x: Tensor, weight_H: Tensor) -> Tensor:
        return F.rms_norm(x, weight_H.shape, weight_H, self.config.rms_eps)

    def _heads(self, x_TN: Tensor, norm_D: Tensor | None, rotary_T2D: Tensor) -> Tensor:
        """Returns [T, heads, D]: normalised if the model does so, and rotated by position."""
        x = x_TN.unflatten(1, (-1, self.config.head_dim))
        if norm_D is not None:
            x = self._norm(x, norm_D)
        cos, sin = rotary_T2D.unsqueeze(2).unbind(1)
        return x * cos + x.roll(self.config.head_dim // 2, -1) * sin

    def _rows_at_a_time(self) -> int:
        widest = max(self.config.intermediate_size, self.config.q_size)
        return max(1, CHUNK_BYTES // (3 * 4 * widest))


class Pass:
    """Hidden states of samples between two layers."""

    def __init__(self, samples: list[Sample], hidden: dict[str, Tensor]) -> None:
        self.samples = samples
        self.hidden = hidden
        """By stream, [T, H]: the samples one after the other."""

    def each(self) -> Iterator[tuple[Sample, range]]:
        """Yields every sample with its rows."""
        first = 0
        for sample in self.samples:
            yield sample, range(first, first + len(sample.token_ids))
            first += len(sample.token_ids)

    def chunks(self, num_rows: int) -> Iterator[list[range]]:
        """Yields rows of neighbouring whole samples, about `num_rows` at a time."""
        chunk: list[range] = []
        for _, rows in self.each():
            if chunk and rows.stop - chunk[0].start > num_rows:
                yield chunk
                chunk = []
            chunk.append(rows)
        if chunk:
            yield chunk


class _Best:
    """Logits of a vocabulary that is processed in parts: the targets', the largest, and the sum of all."""

    def __init__(self, hidden_TH: Tensor, targets_T: Tensor) -> None:
        self._hidden_TH, self._targets_T = hidden_TH, targets_T
        self._target = hidden_TH.new_full((len(hidden_TH),), math.nan)
        self._largest = hidden_TH.new_full((len(hidden_TH),), -math.inf)
        self._likeliest = torch.zeros_like(targets_T)
        self._log_sum = self._largest.clone()

    def add(self, first: int, head_VH: Tensor) -> None:
        logits_TV = F.linear(self._hidden_TH, head_VH)
        inside = (self._targets_T >= first) & (self._targets_T < first + len(head_VH))
        rows = inside.nonzero()[:, 0]
        self._target[rows] = logits_TV[rows, self._targets_T[rows] - first]
        largest, likeliest = logits_TV.max(-1)
        better = largest > self._largest  # among equals the lowest id, as in the engine
        self._likeliest[better] = likeliest[better] + first
        self._largest = torch.maximum(self._largest, largest)
        self._log_sum = torch.logaddexp(self._log_sum, logits_TV.logsumexp(-1))

    def split(self, sizes: list[int]) -> list[Scores]:
        log_probs = (self._target - self._log_sum).cpu().split(sizes)
        likeliest = self._likeliest.cpu().split(sizes)
        return [Scores(part.tolist(), top.tolist()) for part, top in zip(log_probs, likeliest, strict=True)]


def _attention(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor, lengths: list[int]) -> Tensor:
    """Computes causal attention within every sample: [T, H * D]."""
    parts = [part.split(lengths) for part in (q_THD, k_THD, v_THD)]
    mixed = []
    for q, k, v in zip(*parts, strict=True):
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        mixed.append(out[0].transpose(0, 1).flatten(1))
    return torch.cat(mixed)
