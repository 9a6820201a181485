"""Divides adapters like the model: a rank has the part of each A and B that meets its part of the base.

Of column-parallel modules (q, k, v, gate, up) a rank has all of A and its outputs' columns of B; of
row-parallel ones (o, down) its inputs' columns of A and all of B. Their products are parts of the sums that
the base's products are summed in anyway, so adapters add no communication.
"""

from __future__ import annotations

from engine.lora.artifact import LoraPair, PackedAdapter
from engine.lora.manifest import SCALED, Manifest, ModuleShape, lay_out
from engine.model.config import ModelConfig
from engine.model.shards import Shard, weight_part


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
            outputs, inputs = weight_part(config, name, shard)
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
    outputs, inputs = weight_part(config, name, shard)
    num_outputs, num_inputs = len(range(out_features)[outputs]), len(range(in_features)[inputs])
    return ModuleShape(rank, num_inputs, num_outputs, scale)
