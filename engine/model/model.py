"""Computes the decoder's forward pass: Llama, Mistral, Qwen2 and Qwen3 are one model with switches.

The input is a flattened batch of tokens, where their keys and values go, and which adapter each row uses. The
layers are written once; a step is described in the form its device needs, and every op picks its
implementation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.cache import KVCache
from engine.model.collectives import ShardGroup
from engine.model.config import ModelConfig
from engine.model.exchange import Exchange
from engine.model.products import Adapters, Products
from engine.model.quantization import Linear
from engine.model.rope import RotaryTable
from kernels.activation import Activation, Projection
from kernels.attention import AttentionMetadata, AttentionPlan, DeviceStep, paged_attention
from kernels.embedding import embed
from kernels.rms_norm import rms_norm
from kernels.rope_kv import CacheRows, Placement, kv_rows, rope_kv
from kernels.silu_mul import silu_mul
from kernels.workspace import Workspace

MIN_ROWS = 4
"""Rows to which every product on a CPU is padded: with fewer the BLAS sums in another order, and a lone
request would get other bits than the same request in a batch."""

PART_INPUTS = ("mixed", "inner")
"""Inputs of the products that the ranks of a group sum, whose scales are the products'."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one decoder layer; q/k/v and gate/up are fused."""

    input_norm_H: Tensor
    post_norm_H: Tensor
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None
    qkv: Linear
    o: Linear
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Step:
    """What all layers of one forward pass share."""

    num_tokens: int
    num_rows: int
    """`num_tokens`, padded to `MIN_ROWS` on a CPU."""
    rotary: Tensor
    where: CacheRows | Placement
    plan: AttentionPlan | DeviceStep
    cache: Tensor
    """[L, N, 2, Hkv, B, D]"""
    lora: Adapters | None


class Model:
    """A loaded base model, or one rank's part of it. One forward pass at a time: scratch memory is shared
    between calls.
    """

    def __init__(
        self,
        config: ModelConfig,
        quantization: str,
        embedding_VH: Tensor,
        layers: list[Layer],
        norm_H: Tensor,
        head_VH: Tensor,
        group: ShardGroup | None = None,
    ) -> None:
        """`config` is what this rank computes; in a group, embedding and head are part of the vocabulary."""
        self.config = config
        self.group = group
        self.quantization = quantization
        self.device = embedding_VH.device
        self.dtype = embedding_VH.dtype
        self._embedding_VH = embedding_VH
        self._layers = layers
        self._norm_H = norm_H
        self._head_HV = head_VH.t()
        self._rotary = RotaryTable(config, self.device)
        self._workspace = Workspace(self.device)
        self.exchange = None if group is None else Exchange(group, config.vocab_size, self._workspace)
        self._parts = self._workspace if self.exchange is None else self.exchange.parts
        linears = {group: [getattr(layer, group) for layer in layers] for group in config.group_widths}
        self.products = Products(config, linears, self.dtype, self._workspace, self.exchange)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all layers' linear weights, as stored."""
        return sum(
            linear.num_bytes
            for layer in self._layers
            for linear in (layer.qkv, layer.o, layer.gate_up, layer.down)
        )

    @property
    def head_bytes(self) -> int:
        """Bytes of the output head."""
        return self._head_HV.nbytes

    @torch.inference_mode()
    def forward(
        self,
        input_ids_T: Tensor,
        positions_T: Tensor,
        attention: AttentionMetadata,
        kv: KVCache,
        lora: Adapters | None = None,
    ) -> Tensor:
        """Runs one step described on the host, and writes its tokens' keys and values.

        Args:
            input_ids_T, positions_T: int64, the flattened batch.
            attention: the same batch by sequence.
            kv: updated in place.
            lora: `begin` has been called with this batch's slots; None runs the base alone.

        Returns:
            Normed hidden states [T, H], in memory that the next forward pass overwrites.
        """
        num_tokens = len(input_ids_T)
        if len(positions_T) != num_tokens or attention.num_tokens != num_tokens:
            raise ValueError(
                f"forward: {num_tokens} ids, {len(positions_T)} positions, "
                f"metadata of {attention.num_tokens} tokens"
            )
        step = self._step_on_host(positions_T, attention, kv, lora)
        residual = self._take("residual", (step.num_rows, self.config.hidden_size))
        self._embed(input_ids_T, residual[:num_tokens])
        residual[num_tokens:].zero_()
        return self._decode(step, residual)

    @torch.inference_mode()
    def forward_on_device(
        self,
        ids_T: Tensor,
        next_ids_R: Tensor,
        plan: DeviceStep,
        kv: KVCache,
        lora: Adapters | None = None,
        num_layers: int | None = None,
    ) -> Tensor:
        """Queues one step described in device memory: nothing here waits, so it can be captured.

        Args:
            ids_T: int32, -1 for the token that the step before drew for its row.
            next_ids_R: int32, what the step before drew.
            plan: positions, rows and block tables of the T tokens, some of which only pad the bucket.
            kv, lora: as in `forward`, but `lora` is applied whether or not a row has an adapter.
            num_layers: only the first ones run, which shows what kernels all of them launch.

        Returns:
            Normed hidden states [T, H], in memory that the next forward pass overwrites.
        """
        num_tokens = len(ids_T)
        residual = self._take("residual", (num_tokens, self.config.hidden_size))
        update: Projection | None = None
        if self.exchange is None:
            embed(ids_T, plan.rows_T, next_ids_R, self._embedding_VH, residual)
        else:
            self.exchange.begin()
            embedded_TH, update = self.exchange.embedded(residual)
            first = self.exchange.first_id
            embed(ids_T, plan.rows_T, next_ids_R, self._embedding_VH, embedded_TH, first)
            if update is None:
                self.exchange.sum(residual)
        step = Step(
            num_tokens=num_tokens,
            num_rows=num_tokens,
            rotary=self._rotary.whole_P2D,
            where=plan,
            plan=plan,
            cache=kv.layers,
            lora=lora,
        )
        return self._decode(step, residual, update, num_layers)

    def hidden(self, num_tokens: int) -> Tensor:
        """Returns [T, H] of the last `forward_on_device` with that many tokens, or of its last replay."""
        return self._take("x", (num_tokens, self.config.hidden_size))

    @torch.no_grad()
    def logits(self, hidden_SH: Tensor) -> Tensor:
        """Returns [S, V] fp32 for hidden states of a forward pass; on a GPU the next call overwrites them.

        In a group they are on rank 0; other ranks take part, and get [S, 0].
        """
        if self.exchange is not None:
            return self.exchange.logits(hidden_SH, self._head)
        shape = len(hidden_SH), self.config.vocab_size
        if self.device.type == "cuda":
            out_SV = self._workspace.take("logits", shape, torch.float32)
        else:
            out_SV = torch.empty(shape)
        self._head(hidden_SH, out_SV)
        return out_SV

    def _head(self, hidden_SH: Tensor, out_SV: Tensor) -> None:
        """Computes logits of this rank's part of the vocabulary."""
        num_rows, head_HV = len(hidden_SH), self._head_HV[:, : out_SV.shape[1]]
        if self.device.type == "cuda":
            for rows in self.products.slices(num_rows):
                torch.mm(hidden_SH[rows], head_HV, out_dtype=torch.float32, out=out_SV[rows])
            return
        if num_rows < MIN_ROWS:
            hidden_SH = torch.cat((hidden_SH, hidden_SH.new_zeros(MIN_ROWS - num_rows, hidden_SH.shape[1])))
        out_SV.copy_(torch.mm(hidden_SH, head_HV)[:num_rows])

    def _embed(self, ids_T: Tensor, out_TH: Tensor) -> None:
        exchange = self.exchange
        if exchange is None:
            torch.index_select(self._embedding_VH, 0, ids_T, out=out_TH)
            return
        is_elsewhere_T = (ids_T < exchange.first_id) | (ids_T >= exchange.end_id)
        here_T = (ids_T - exchange.first_id).masked_fill(is_elsewhere_T, 0)
        torch.index_select(self._embedding_VH, 0, here_T, out=out_TH)
        out_TH.masked_fill_(is_elsewhere_T[:, None], 0)
        exchange.sum(out_TH)

    def _summed(self, partial: Projection) -> Projection:
        """Sums a row-parallel product over the ranks."""
        return partial if self.exchange is None else self.exchange.summed(partial)

    def _step_on_host(
        self, positions_T: Tensor, attention: AttentionMetadata, kv: KVCache, lora: Adapters | None
    ) -> Step:
        config = self.config
        started = torch.from_numpy(attention.started_blocks)
        if len(started):
            kv.clear(started.to(self.device))
        slots = torch.from_numpy(attention.slot_mapping).to(self.device)
        return Step(
            num_tokens=attention.num_tokens,
            num_rows=max(attention.num_tokens, MIN_ROWS),
            rotary=self._rotary.rows(positions_T, attention.max_total_len - 1),
            where=CacheRows(kv_rows(slots, config.num_kv_heads, kv.block_size)),
            plan=AttentionPlan.build(attention, config.num_heads, config.num_kv_heads, self._workspace),
            cache=kv.layers,
            lora=lora if lora is not None and lora.active else None,
        )

    def _decode(
        self, step: Step, residual: Tensor, update: Projection | None = None, num_layers: int | None = None
    ) -> Tensor:
        for index, layer in enumerate(self._layers[:num_layers]):
            x = self._norm(update, layer.input_norm_H, residual, self._input("x", residual, layer.qkv, step))
            update = self._attention(index, layer, x, step)
            x = self._norm(
                update, layer.post_norm_H, residual, self._input("x", residual, layer.gate_up, step)
            )
            update = self._feed_forward(index, layer, x, step)
        final = Activation(self._take("x", tuple(residual.shape)))
        self._norm(update, self._norm_H, residual, final)
        assert final.x_TK is not None
        return final.x_TK[: step.num_tokens]

    def _attention(self, index: int, layer: Layer, x: Activation, step: Step) -> Projection:
        config, num_tokens = self.config, step.num_tokens
        fused = self._product(index, "qkv", layer.qkv, x, step)
        cache = step.cache[index]
        q = rope_kv(
            fused.y_TN[:num_tokens],
            step.rotary,
            cache,
            step.where,
            config.num_heads,
            q_norm_D=layer.q_norm_D,
            k_norm_D=layer.k_norm_D,
            eps=config.rms_eps,
            scale_T=fused.scale_T,
            delta=fused.delta,
            parts_PTN=fused.parts_PTN,
        )
        mixed_TK = self._take("mixed", (step.num_rows, config.q_size))
        mixed_TK[num_tokens:].zero_()
        mixed = self._input("mixed", mixed_TK, layer.o, step)
        paged_attention(
            q,
            cache,
            step.plan,
            config.head_dim**-0.5,
            mixed_TK[:num_tokens].view(num_tokens, config.num_heads, config.head_dim),
            quantized=mixed.quantized_TK,
            quantized_scale_T=mixed.scale_T,
        )
        return self._summed(self._product(index, "o", layer.o, mixed, step))

    def _feed_forward(self, index: int, layer: Layer, x: Activation, step: Step) -> Projection:
        gate_up = self._product(index, "gate_up", layer.gate_up, x, step)
        shape = (step.num_rows, self.config.intermediate_size)
        inner = self._input("inner", self._take("inner", shape), layer.down, step)
        silu_mul(
            gate_up.y_TN,
            inner.x_TK,
            scale_T=gate_up.scale_T,
            delta=gate_up.delta,
            quantized=inner.quantized_TK,
            quantized_scale_T=inner.scale_T,
        )
        return self._summed(self._product(index, "down", layer.down, inner, step))

    def _product(self, index: int, group: str, linear: Linear, x: Activation, step: Step) -> Projection:
        return self.products.compute(index, group, linear, x, step.num_rows, step.lora)

    def _norm(
        self, update: Projection | None, weight_H: Tensor, residual: Tensor, x: Activation
    ) -> Activation:
        """Semantics: residual += update (what the last block computed); x = norm(residual)."""
        if update is not None and update.is_part:
            assert self.exchange is not None
            self.exchange.norm(update, weight_H, self.config.rms_eps, residual, x)
            return x
        rows = Projection(residual) if update is None else update
        rms_norm(
            rows.y_TN,
            weight_H,
            self.config.rms_eps,
            x.x_TK,
            None if update is None else residual,
            scale_T=rows.scale_T,
            delta=rows.delta,
            parts=rows.parts_PTN,
            quantized=x.quantized_TK,
            quantized_scale_T=x.scale_T,
        )
        return x

    def _input(self, name: str, like: Tensor, linear: Linear, step: Step) -> Activation:
        """Allocates what `linear` reads: plain, where it or an adapter reads that, and quantised."""
        shape = tuple(like.shape)
        if not linear.wants_fp8:
            return Activation(self._take(name, shape))
        scales = self._parts if name in PART_INPUTS else self._workspace
        return Activation(
            None if step.lora is None else self._take(name, shape),
            self._workspace.take(f"{name}.fp8", shape, torch.float8_e4m3fn),
            scales.take(f"{name}.scale", shape[:1], torch.float32),
        )

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._workspace.take(name, shape, self.dtype)
