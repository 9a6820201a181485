"""The decoder: Llama, Mistral, Qwen2 and Qwen3 are one model with switches.

Owns the weights and the order of the ops. Refuses to know requests, sampling and scheduling: it is given a
flattened batch of tokens, where their keys and values go, and which adapter each row wears.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.model.cache import KVCache
from engine.model.config import GROUPS, ModelConfig, load_config
from engine.model.quantization import Linear, check_quantization, make_linear
from engine.model.rope import RotaryTable
from engine.model.weights import Checkpoint, layer_tensor, open_checkpoint
from kernels.attention import AttentionMetadata, AttentionPlan, paged_attention
from kernels.kv_write import kv_rows, kv_write
from kernels.lora import LoraContext
from kernels.rms_norm import rms_norm
from kernels.rope import rope
from kernels.silu_mul import silu_mul
from kernels.workspace import Workspace

MIN_ROWS = 4
"""Rows every product is padded to: with fewer the BLAS sums in another order, and a lone request would get
other bits than the same request in a batch."""


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
    """`num_tokens`, padded to `MIN_ROWS`."""
    rotary_T2D: Tensor
    cache_rows_T2H: Tensor
    plan: AttentionPlan
    lora: LoraContext | None


class Model:
    """A loaded base model. One forward pass at a time: scratch memory is shared between calls."""

    def __init__(
        self,
        config: ModelConfig,
        quantization: str,
        embedding_VH: Tensor,
        layers: list[Layer],
        norm_H: Tensor,
        head_VH: Tensor,
    ) -> None:
        self.config = config
        self.quantization = quantization
        self.device = embedding_VH.device
        self.dtype = embedding_VH.dtype
        self._embedding_VH = embedding_VH
        self._layers = layers
        self._norm_H = norm_H
        self._head_HV = head_VH.t()
        self._rotary = RotaryTable(config, self.device)
        self._workspace = Workspace(self.device)
        self._widths = {
            group: tuple(config.linear_shapes[module][0] for module in modules)
            for group, modules in GROUPS.items()
        }

    @torch.inference_mode()
    def forward(
        self,
        input_ids_T: Tensor,
        positions_T: Tensor,
        attention: AttentionMetadata,
        kv: KVCache,
        lora: LoraContext | None = None,
    ) -> Tensor:
        """Runs one step: writes the tokens' keys and values, returns the normed hidden states.

        Args:
            input_ids_T, positions_T: int64, the flattened batch.
            attention: the same batch by sequence.
            kv: updated in place.
            lora: `begin` has been called with this batch's slots; None runs the base alone.

        Returns:
            [T, H], in memory that the next forward pass overwrites.
        """
        num_tokens = len(input_ids_T)
        if len(positions_T) != num_tokens or attention.num_tokens != num_tokens:
            raise ValueError(
                f"forward: {num_tokens} ids, {len(positions_T)} positions, "
                f"metadata of {attention.num_tokens} tokens"
            )
        step = self._begin(positions_T, attention, kv, lora)
        shape = (step.num_rows, self.config.hidden_size)
        residual, x = self._take("residual", shape), self._take("x", shape)
        torch.index_select(self._embedding_VH, 0, input_ids_T, out=residual[:num_tokens])
        residual[num_tokens:].zero_()
        delta = None
        for index, layer in enumerate(self._layers):
            self._norm(delta, layer.input_norm_H, x, residual)
            delta = self._attention(index, layer, x, step, kv.layers[index])
            self._norm(delta, layer.post_norm_H, x, residual)
            delta = self._feed_forward(index, layer, x, step)
        self._norm(delta, self._norm_H, x, residual)
        return x[:num_tokens]

    @torch.no_grad()
    def logits(self, hidden_SH: Tensor) -> Tensor:
        """[S, V] fp32 for hidden states that `forward` returned."""
        num_rows = len(hidden_SH)
        if num_rows < MIN_ROWS:
            hidden_SH = torch.cat((hidden_SH, hidden_SH.new_zeros(MIN_ROWS - num_rows, hidden_SH.shape[1])))
        return torch.mm(hidden_SH, self._head_HV)[:num_rows].float()

    def _begin(
        self, positions_T: Tensor, attention: AttentionMetadata, kv: KVCache, lora: LoraContext | None
    ) -> Step:
        config = self.config
        started = torch.from_numpy(attention.started_blocks)
        if len(started):
            kv.clear(started.to(self.device))
        slots = torch.from_numpy(attention.slot_mapping).to(self.device)
        return Step(
            num_tokens=attention.num_tokens,
            num_rows=max(attention.num_tokens, MIN_ROWS),
            rotary_T2D=self._rotary.rows(positions_T, attention.max_total_len - 1),
            cache_rows_T2H=kv_rows(slots, config.num_kv_heads, kv.block_size),
            plan=AttentionPlan.build(attention, config.num_heads, config.num_kv_heads, self._workspace),
            lora=lora if lora is not None and lora.active else None,
        )

    def _attention(self, index: int, layer: Layer, x: Tensor, step: Step, cache: Tensor) -> Tensor:
        config, num_tokens = self.config, step.num_tokens
        fused = self._linear(index, "qkv", layer.qkv, x, step)
        heads = fused[:num_tokens].unflatten(1, (-1, config.head_dim))
        num_rotated = config.num_heads + config.num_kv_heads
        q, k = heads[:, : config.num_heads], heads[:, config.num_heads : num_rotated]
        if layer.q_norm_D is not None and layer.k_norm_D is not None:
            rms_norm(q, layer.q_norm_D, config.rms_eps, q)
            rms_norm(k, layer.k_norm_D, config.rms_eps, k)
        rope(heads[:, :num_rotated], step.rotary_T2D)
        kv_write(heads[:, config.num_heads :].unflatten(1, (2, -1)), step.cache_rows_T2H, cache)
        mixed = self._take("mixed", (step.num_rows, config.q_size))
        mixed[num_tokens:].zero_()
        out = mixed[:num_tokens].view(num_tokens, config.num_heads, config.head_dim)
        paged_attention(q, cache, step.plan, config.head_dim**-0.5, out)
        return self._linear(index, "o", layer.o, mixed, step)

    def _feed_forward(self, index: int, layer: Layer, x: Tensor, step: Step) -> Tensor:
        gate_up = self._linear(index, "gate_up", layer.gate_up, x, step)
        inner = silu_mul(gate_up, self._take("inner", (step.num_rows, self.config.intermediate_size)))
        return self._linear(index, "down", layer.down, inner, step)

    def _linear(self, index: int, group: str, linear: Linear, x: Tensor, step: Step) -> Tensor:
        """The fused base linear of a group, and the adapters beside it."""
        widths = self._widths[group]
        out = linear(x, self._take(group, (step.num_rows, sum(widths))))
        if step.lora is not None:
            step.lora.apply(index, group, x, out, widths)
        return out

    def _norm(self, delta: Tensor | None, weight_H: Tensor, x: Tensor, residual: Tensor) -> None:
        """residual += delta (what the last block computed); x = norm(residual)."""
        if delta is None:
            rms_norm(residual, weight_H, self.config.rms_eps, x)
        else:
            rms_norm(delta, weight_H, self.config.rms_eps, x, residual)

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._workspace.take(name, shape, self.dtype)


def load_model(
    base_dir: Path,
    quantization: str = "none",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Model:
    """Loads a Hugging Face checkpoint; whatever its storage type, tensors become `dtype`.

    Raises:
        ValueError: the checkpoint is incomplete, unexplained or unsupported; the message names the field or
            tensor.
    """
    device = torch.device(device)
    check_quantization(quantization, device)
    config = load_config(base_dir)
    with open_checkpoint(base_dir, config, dtype, device) as checkpoint:
        layers = [_load_layer(checkpoint, config, index, quantization) for index in range(config.num_layers)]
        embedding_VH = checkpoint.tensor("model.embed_tokens.weight")
        head_VH = embedding_VH if config.tie_embeddings else checkpoint.tensor("lm_head.weight")
        norm_H = checkpoint.tensor("model.norm.weight")
    return Model(config, quantization, embedding_VH, layers, norm_H, head_VH)


def _load_layer(checkpoint: Checkpoint, config: ModelConfig, index: int, quantization: str) -> Layer:
    prefix = f"model.layers.{index}."

    def linear(group: str) -> Linear:
        modules = GROUPS[group]
        biases = [layer_tensor(index, module, "bias") for module in modules if config.has_bias(module)]
        return make_linear(
            quantization,
            checkpoint.fused([layer_tensor(index, module) for module in modules]),
            checkpoint.fused(biases) if biases else None,
        )

    return Layer(
        input_norm_H=checkpoint.tensor(prefix + "input_layernorm.weight"),
        post_norm_H=checkpoint.tensor(prefix + "post_attention_layernorm.weight"),
        q_norm_D=checkpoint.tensor(prefix + "self_attn.q_norm.weight") if config.qk_norm else None,
        k_norm_D=checkpoint.tensor(prefix + "self_attn.k_norm.weight") if config.qk_norm else None,
        qkv=linear("qkv"),
        o=linear("o"),
        gate_up=linear("gate_up"),
        down=linear("down"),
    )
