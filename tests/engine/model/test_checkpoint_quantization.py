"""quantization_config: what is read, and refusals that name the field."""

from __future__ import annotations

from typing import Any

import pytest

from engine.model.checkpoint_quantization import CheckpointQuantization, parse_quantization
from tests.engine.model.quantized_checkpoints import (
    AWQ_FIELDS,
    GPTQ_FIELDS,
    compressed,
    float8_numbers,
    int4_weights,
)

TOKEN = float8_numbers("token", True)


def parse(fields: dict[str, Any] | None) -> CheckpointQuantization | None:
    return parse_quantization({"quantization_config": fields})


def packed(**changes: Any) -> dict[str, Any]:
    return compressed("pack-quantized", int4_weights(128, True) | changes, None)


def float8(**changes: Any) -> dict[str, Any]:
    return compressed("float-quantized", float8_numbers("channel", False) | changes, TOKEN)


def in_group(fields: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return fields | {"config_groups": {"group_0": fields["config_groups"]["group_0"] | changes}}


def test_floats_need_no_field() -> None:
    assert parse(None) is None
    assert parse_quantization({}) is None


def test_each_dialect() -> None:
    assert parse(AWQ_FIELDS | {"version": "GEMM", "modules_to_not_convert": ["down_proj"]}) == (
        CheckpointQuantization("awq", 128, zero_points=True, ignored=("down_proj",))
    )
    assert parse(GPTQ_FIELDS | {"desc_act": True}) == CheckpointQuantization(
        "gptq", 128, zero_points=True, zero_offset=1, activation_order=True
    )
    assert parse(GPTQ_FIELDS | {"checkpoint_format": "gptq_v2"}) == CheckpointQuantization(
        "gptq", 128, zero_points=True
    )
    assert parse(packed(symmetric=False, actorder="group")) == CheckpointQuantization(
        "pack-quantized", 128, zero_points=True, activation_order=True, ignored=("lm_head",)
    )
    assert parse(packed(strategy="channel", group_size=None)) == CheckpointQuantization(
        "pack-quantized", -1, ignored=("lm_head",)
    )
    static = compressed("float-quantized", float8_numbers("tensor", False), float8_numbers("tensor", False))
    assert parse(static) == CheckpointQuantization("float-quantized", input_scales=True, ignored=("lm_head",))
    assert parse(float8()) == CheckpointQuantization(
        "float-quantized", per_channel=True, ignored=("lm_head",)
    )


def test_what_is_left_out() -> None:
    by_part = parse(AWQ_FIELDS | {"modules_to_not_convert": ["mlp.down"]})
    by_name = parse(packed() | {"ignore": ["lm_head", r"re:model\.layers\.1\..*"]})
    assert by_part is not None
    assert by_name is not None
    assert not by_part.covers("model.layers.0.mlp.down_proj")
    assert by_part.covers("model.layers.0.mlp.up_proj")
    assert not by_name.covers("lm_head")
    assert not by_name.covers("model.layers.1.mlp.up_proj")
    assert by_name.covers("model.layers.11.mlp.up_proj")
    assert by_name.covers("model.layers.0.mlp.up_proj")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method = 'bitsandbytes'"),
        ({}, "quant_method = None"),
        (AWQ_FIELDS | {"bits": 8}, "bits = 8"),
        (AWQ_FIELDS | {"bits": 4.0}, "bits = 4.0"),
        (AWQ_FIELDS | {"version": "gemv"}, "version = 'gemv'"),
        (AWQ_FIELDS | {"zero_point": False}, "zero_point = False"),
        (AWQ_FIELDS | {"group_size": 64}, "group_size = 64"),
        (AWQ_FIELDS | {"group_size": True}, "group_size = True"),
        (AWQ_FIELDS | {"group_size": None}, "group_size = None"),
        (AWQ_FIELDS | {"smoothing": 1}, "smoothing is not supported; it may change weights"),
        (AWQ_FIELDS | {"modules_to_not_convert": "down_proj"}, "modules_to_not_convert = 'down_proj'"),
        (GPTQ_FIELDS | {"bits": 3}, "bits = 3"),
        (GPTQ_FIELDS | {"lm_head": True}, "lm_head = True"),
        (GPTQ_FIELDS | {"dynamic": {"-:.*": {}}}, "dynamic = "),
        (GPTQ_FIELDS | {"checkpoint_format": "marlin"}, "checkpoint_format = 'marlin'"),
        (GPTQ_FIELDS | {"desc_act": "yes"}, "desc_act = 'yes'"),
        (GPTQ_FIELDS | {"sym": 1}, "sym = 1"),
        (GPTQ_FIELDS | {"pack_dtype": "int64"}, "pack_dtype = 'int64'"),
        (GPTQ_FIELDS | {"modules_in_block_to_quantize": [["q_proj"]]}, "modules_in_block_to_quantize"),
        (packed() | {"format": "marlin-24"}, "format = 'marlin-24'"),
        (packed() | {"format": "int-quantized"}, "format = 'int-quantized'"),
        (packed() | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
        (packed() | {"sparsity_config": {"format": "sparse-24"}}, "sparsity_config"),
        (packed() | {"transform_config": {"r1": 1}}, "transform_config"),
        (packed() | {"quantization_status": "frozen"}, "quantization_status = 'frozen'"),
        (packed() | {"config_groups": {}}, "config_groups = {}"),
        (packed() | {"config_groups": {"a": {}, "b": {}}}, "config_groups"),
        (packed() | {"ignore": ["re:("]}, r"ignore: 're:\('"),
        (packed(num_bits=8), r"config_groups.group_0.weights.num_bits = 8"),
        (packed(type="float"), "weights.type = 'float'"),
        (packed(group_size=32), "weights.group_size = 32"),
        (packed(strategy="tensor"), "weights.strategy = 'tensor'"),
        (packed(actorder="dynamic"), "weights.actorder = 'dynamic'"),
        (packed(dynamic=True), "weights.dynamic = True"),
        (packed(rotation=1), "weights.rotation is not supported; it may change weights"),
        (in_group(packed(), targets=["re:.*q_proj"]), "targets = "),
        (in_group(packed(), input_activations=TOKEN), "input_activations"),
        (in_group(packed(), output_activations=TOKEN), "output_activations"),
        (in_group(packed(), weights=None), "weights = None"),
        (float8(strategy="block"), "weights.strategy = 'block'"),
        (float8(num_bits=4), "weights.num_bits = 4"),
        (in_group(float8(), input_activations=None), "input_activations = None"),
        (in_group(float8(), input_activations=TOKEN | {"num_bits": 4}), "input_activations.num_bits = 4"),
        (in_group(float8(), input_activations=TOKEN | {"strategy": "group"}), "strategy = 'group'"),
        (in_group(float8(), input_activations=TOKEN | {"dynamic": "local"}), "dynamic = 'local'"),
    ],
)
def test_refuses_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(fields)


def test_refuses_other_spellings() -> None:
    with pytest.raises(ValueError, match="must be an object"):
        parse_quantization({"quantization_config": "awq"})
    with pytest.raises(ValueError, match="compression_config"):
        parse_quantization({"compression_config": {}})
