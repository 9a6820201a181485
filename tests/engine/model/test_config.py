"""Reading config.json: both spellings of transformers, defaults, and refusals that name the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from engine.model.config import GROUPS, load_config, parse_config

MINIMAL: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 112,
    "vocab_size": 160,
    "max_position_embeddings": 256,
}

QWEN_WINDOW: dict[str, Any] = {"model_type": "qwen2", "sliding_window": 100, "use_sliding_window": True}


def parse(**fields: Any) -> Any:
    return parse_config({key: value for key, value in (MINIMAL | fields).items() if value != "absent"})


def test_defaults_of_each_architecture() -> None:
    assert parse().num_kv_heads == 4
    assert parse().head_dim == 16
    assert parse(model_type="qwen3", num_key_value_heads=2).head_dim == 128
    assert parse(model_type="qwen3", num_key_value_heads=2).qk_norm
    qwen2 = parse(model_type="qwen2", num_key_value_heads=2)
    assert [qwen2.has_bias(module) for module in ("q_proj", "o_proj", "up_proj")] == [True, False, False]
    llama = parse(attention_bias=True, mlp_bias=True)
    assert [llama.has_bias(module) for module in ("q_proj", "o_proj", "up_proj")] == [True, True, True]


def test_linear_shapes_cover_every_group() -> None:
    config = parse(num_key_value_heads=2, head_dim=24)
    shapes = config.linear_shapes
    assert set(shapes) == {module for modules in GROUPS.values() for module in modules}
    assert shapes["q_proj"] == (96, 64)
    assert shapes["k_proj"] == shapes["v_proj"] == (48, 64)
    assert shapes["o_proj"] == (64, 96)
    assert shapes["down_proj"] == (64, 112)


def test_both_spellings_of_rope() -> None:
    fields = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    new = parse(rope_parameters=fields | {"rope_theta": 5e5})
    old = parse(rope_scaling=fields, rope_theta=5e5)
    assert new.rope_scaling == old.rope_scaling
    assert new.rope_theta == old.rope_theta == 5e5
    assert parse(rope_scaling={"type": "linear", "factor": 2}).rope_scaling.factor == 2.0
    assert parse(rope_parameters=None).rope_theta == 10000.0


@pytest.mark.parametrize(
    ("fields", "window", "max_position"),
    [
        ({"model_type": "mistral"}, 4096, 256),
        ({"model_type": "mistral", "sliding_window": None}, None, 256),
        ({"model_type": "mistral", "sliding_window": 100}, 100, 100),
        ({"model_type": "qwen2", "sliding_window": 100}, None, 256),
        (QWEN_WINDOW | {"max_window_layers": 0}, 100, 100),
        (QWEN_WINDOW | {"max_window_layers": 1}, 100, 100),
        (QWEN_WINDOW | {"max_window_layers": 2}, None, 256),
        (QWEN_WINDOW | {"max_window_layers": 9}, None, 256),
        (QWEN_WINDOW, None, 256),
        (QWEN_WINDOW | {"num_hidden_layers": 29}, 100, 100),
        (QWEN_WINDOW | {"model_type": "qwen3", "max_window_layers": 2}, None, 256),
        (QWEN_WINDOW | {"layer_types": ["full_attention", "sliding_attention"]}, 100, 100),
        (QWEN_WINDOW | {"max_window_layers": 0, "use_sliding_window": False}, None, 256),
        (QWEN_WINDOW | {"max_window_layers": 0, "sliding_window": 300}, 300, 256),
        (
            {
                "model_type": "qwen3",
                "sliding_window": 100,
                "use_sliding_window": True,
                "layer_types": ["full_attention"] * 2,
            },
            None,
            256,
        ),
        ({"sliding_window": 100}, None, 256),
    ],
)
def test_a_sliding_window_clamps_the_context(
    fields: dict[str, Any], window: int | None, max_position: int
) -> None:
    config = parse(num_key_value_heads=2, **fields)
    assert (config.sliding_window, config.max_position) == (window, max_position)
    assert config.is_clamped == (max_position < 256)
    if "qwen" in fields.get("model_type", ""):
        theirs = AutoConfig.for_model(**(MINIMAL | {"num_key_value_heads": 2} | fields))
        assert (theirs.sliding_window is not None and "sliding_attention" in theirs.layer_types) == bool(
            window
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2'"),
        (
            QWEN_WINDOW | {"num_key_value_heads": 2, "max_window_layers": "all"},
            "max_window_layers must be an integer",
        ),
        ({"model_type": "absent"}, "model_type None"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"pretraining_tp": 2}, "pretraining_tp"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}},
            "partial_rotary_factor",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_type 'longrope'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor of rope_type 'linear'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor of rope_type 'llama3'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "flat object"),
        ({"rope_theta": -1}, "rope_theta"),
        ({"hidden_size": "absent"}, "hidden_size"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"model_type": "mistral"}, "num_key_value_heads"),
        ({"num_attention_heads": 5}, "num_attention_heads 5"),
        ({"head_dim": 15}, "head_dim 15"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
    ],
)
def test_refuses_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(**fields)


def test_eos_comes_from_the_generation_config_first() -> None:
    assert parse(eos_token_id=2).eos_ids == (2,)
    assert parse_config(MINIMAL | {"eos_token_id": 2}, {"eos_token_id": [5, 6]}).eos_ids == (5, 6)
    assert parse_config(MINIMAL | {"eos_token_id": 2}, {"max_length": 20}).eos_ids == (2,)
    assert parse().eos_ids == ()


def test_reads_files_and_names_the_broken_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="not an object"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(MINIMAL))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert load_config(tmp_path).eos_ids == (7,)
