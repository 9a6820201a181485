"""Loads a model from a checkpoint: reads each tensor once and makes each linear layer in the form it is
served in.

The order of reading bounds the memory of a load to one layer beyond the model, on a GPU to one for each
thread that loads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog
import torch

from engine.model.collectives import ShardGroup
from engine.model.config import ModelConfig, load_config
from engine.model.model import Layer, Model
from engine.model.quantization import Linear, check_quantization, make_linear
from engine.model.shards import WHOLE, sharded_config
from engine.model.weights import EMBEDDING, HEAD, Checkpoint, open_checkpoint

log = structlog.get_logger(__name__)

LOADING_THREADS = 4
"""Threads that load layers to a GPU. Each holds a layer in the checkpoint's type beside the model."""


def load_model(
    base_dir: Path,
    quantization: str = "none",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    group: ShardGroup | None = None,
) -> Model:
    """Loads a Hugging Face checkpoint; whatever its storage type, tensors become `dtype`.

    Linear layers that the checkpoint stores quantised stay as they are; others are quantised by
    `quantization`. With `group`, the model is this rank's part of the base.

    Raises:
        ValueError: the checkpoint is incomplete or unsupported, or cannot be divided over the group; the
            message names the field or tensor.
    """
    device = torch.device(device)
    check_quantization(quantization, device)
    shard = WHOLE if group is None else group.shard
    whole = load_config(base_dir)
    config = sharded_config(whole, shard.size)
    with open_checkpoint(base_dir, whole, dtype, device, shard) as checkpoint:
        layers = _load_layers(checkpoint, config, quantization, device)
        embedding_VH = checkpoint.vocabulary(EMBEDDING)
        head_VH = embedding_VH if checkpoint.head_name == EMBEDDING else checkpoint.vocabulary(HEAD)
        if config.tie_embeddings and checkpoint.head_name == HEAD:
            log.warning(
                "model.head_not_tied", tensor=HEAD, reason="differs from the embedding it is said to be"
            )
        norm_H = checkpoint.tensor("model.norm.weight")
    return Model(config, quantization, embedding_VH, layers, norm_H, head_VH, group)


def _load_layers(
    checkpoint: Checkpoint, config: ModelConfig, quantization: str, device: torch.device
) -> list[Layer]:
    def load(index: int) -> Layer:
        return _load_layer(checkpoint, config, index, quantization)

    if device.type != "cuda":
        return [load(index) for index in range(config.num_layers)]
    place = torch.cuda.current_device() if device.index is None else device.index
    with ThreadPoolExecutor(
        LOADING_THREADS, "loading", initializer=torch.cuda.set_device, initargs=(place,)
    ) as threads:
        return list(threads.map(load, range(config.num_layers)))


def _load_layer(checkpoint: Checkpoint, config: ModelConfig, index: int, quantization: str) -> Layer:
    prefix = f"model.layers.{index}."

    def linear(group: str) -> Linear:
        source = checkpoint.linear(index, group)
        return make_linear(quantization, source.weight, source.bias_N)

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
