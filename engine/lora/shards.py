"""Divides adapters over the ranks of a group: each has an even part of every A and every B.

A rank has the columns of A for a part of the module's inputs, and the columns of B for a part of its outputs.
What its part of A makes of a row is summed over the ranks, a few numbers a row; with the sum each rank adds
the adapter to its part of the outputs. Of column-parallel modules (q, k, v, gate, up) those are the outputs
that the rank computes, of row-parallel ones (o, down) some of those that are summed anyway.

Source: after S-LoRA (Sheng et al., arXiv 2311.03285, section 6), which divides the A of column-parallel
modules by ranks.
"""

from __future__ import annotations

from engine.lora.artifact import LoraPair, PackedAdapter
from engine.lora.manifest import SCALED, Manifest, ModuleShape, lay_out
from engine.model.config import ModelConfig
from engine.model.shards import ROW_PARALLEL, Shard, weight_part


def adapter_part(config: ModelConfig, module: str, shard: Shard) -> tuple[slice, slice]:
    """Returns the outputs of a linear for which a rank has B, and the inputs for which it has A.

    `config` is the whole model's.
    """
    outputs, inputs = weight_part(config, module, shard)
    if module in ROW_PARALLEL:
        return shard.part(config.hidden_size), inputs
    return outputs, shard.part(config.hidden_size)


def adapter_widths(config: ModelConfig, num_ranks: int) -> list[int]:
    """Returns the different numbers of inputs that a rank's adapters read. `config` is the rank's."""
    widths = {config.hidden_size // num_ranks}
    return sorted(widths | {config.linear_shapes[module][1] for module in ROW_PARALLEL})


def shard_manifest(manifest: Manifest, config: ModelConfig, shard: Shard) -> Manifest:
    """Returns the manifest of `shard_adapter`'s result. `config` is the whole model's."""
    if shard.size == 1:
        return manifest
    shapes = [
        {
            name: _shape(config, name, shard, module.rank, module.scale)
            for entry in layer.values()
            for name, module in entry.modules.items()
        }
        for layer in manifest.layers
    ]
    return lay_out(shapes, manifest.base_digest, manifest.dtype)


def shard_adapter(packed: PackedAdapter, config: ModelConfig, shard: Shard) -> PackedAdapter:
    """Returns a rank's part of an adapter that fits the whole model; for a group of one, itself."""
    if shard.size == 1:
        return packed
    manifest = packed.manifest
    layers: list[dict[str, LoraPair]] = [{} for _ in manifest.layers]
    for layer, group, entry in packed.groups():
        scales = packed.scales(layer, group) if manifest.dtype == SCALED else None
        begin = 0
        for name, module in entry.modules.items():
            outputs, inputs = adapter_part(config, name, shard)
            ranks = slice(begin, begin + module.rank)
            begin += module.rank
            layers[layer][name] = LoraPair(
                packed.a(layer, group)[ranks, inputs],
                packed.b(layer, group, name)[:, outputs],
                module.scale,
                None if scales is None else scales[0, ranks],
                None if scales is None else scales[1, ranks],
            )
    return PackedAdapter.build(layers, manifest.base_digest, manifest.dtype)


def _shape(config: ModelConfig, name: str, shard: Shard, rank: int, scale: float) -> ModuleShape:
    out_features, in_features = config.linear_shapes[name]
    outputs, inputs = adapter_part(config, name, shard)
    num_outputs, num_inputs = len(range(out_features)[outputs]), len(range(in_features)[inputs])
    return ModuleShape(rank, num_inputs, num_outputs, scale)
