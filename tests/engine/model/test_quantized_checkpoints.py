"""AWQ, GPTQ and compressed-tensors checkpoints: what is loaded is the floats they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.model.config import GROUPS, load_config
from engine.model.model import Layer, Model
from engine.model.quantization import make_linear
from engine.model.weights import SINGLE_FILE, LinearSource, open_checkpoint
from kernels.activation import quantize_rows
from kernels.linear_fp8 import Fp8Weight
from kernels.linear_int4 import Int4Weight, linear_int4
from tests.engine.model.checkpoints import PagedRun, make_reference, prompts, reference_logits
from tests.engine.model.quantized_checkpoints import GPTQ_FIELDS, layouts, set_fields, write

SHAPE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "head_dim": 32}
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "head_dim": 64}


def reference(variant: str = "llama", seed: int = 0, wide: bool = True) -> Any:
    return make_reference(variant, seed, **(WIDE if wide else SHAPE))


def sources(folder: Path) -> dict[str, LinearSource]:
    config = load_config(folder)
    with open_checkpoint(folder, config, torch.float32, torch.device("cpu")) as checkpoint:
        return {group: checkpoint.linear(0, group) for group in GROUPS}


def dense(source: LinearSource) -> torch.Tensor:
    """fp32 [N, K], columns in the order of the inputs."""
    weight = source.weight
    if isinstance(weight, torch.Tensor):
        return weight
    if isinstance(weight, Fp8Weight):
        return weight.values_NK.float() * (weight.scale[:, None] if weight.per_channel else weight.scale)
    values = weight.dequantize()
    if weight.order_K is None:
        return values
    back = torch.empty_like(values)
    back[:, weight.order_K] = values
    return back


def loaded(folder: Path) -> Model:
    """The decoder over a checkpoint's own numbers."""
    config = load_config(folder)
    with open_checkpoint(folder, config, torch.float32, torch.device("cpu")) as checkpoint:
        tensor, layers = checkpoint.tensor, []
        for index in range(config.num_layers):
            prefix = f"model.layers.{index}."
            groups = {}
            for group in GROUPS:
                source = checkpoint.linear(index, group)
                groups[group] = make_linear("none", source.weight, source.bias_N)
            norms = [
                tensor(f"{prefix}{name}.weight") for name in ("input_layernorm", "post_attention_layernorm")
            ]
            layers.append(Layer(*norms, None, None, **groups))
        embedding, norm = tensor("model.embed_tokens.weight"), tensor("model.norm.weight")
        return Model(config, "none", embedding, layers, norm, tensor("lm_head.weight"))


def modules_of(model: Any, group: str) -> list[Any]:
    layer = model.model.layers[0]
    block = layer.self_attn if group in ("qkv", "o") else layer.mlp
    return [getattr(block, module) for module in GROUPS[group]]


@pytest.mark.parametrize("name", layouts())
def test_loaded_weights_are_what_the_checkpoint_means(name: str, tmp_path: Path) -> None:
    model = write(reference(), tmp_path, layouts()[name])
    found = sources(tmp_path)
    for group, source in found.items():
        meant = torch.cat([module.weight for module in modules_of(model, group)])
        assert isinstance(source.weight, Fp8Weight if name.startswith("fp8") else Int4Weight)
        assert torch.equal(dense(source), meant), group


@pytest.mark.parametrize("name", layouts())
def test_one_module_alone_is_read_as_floats(name: str, tmp_path: Path) -> None:
    model = write(reference(), tmp_path, layouts()[name])
    config = load_config(tmp_path)
    with open_checkpoint(tmp_path, config, torch.float32, torch.device("cpu")) as checkpoint:
        for group, modules in GROUPS.items():
            for name, module in zip(modules, modules_of(model, group), strict=True):
                assert torch.equal(checkpoint.dense(0, name), module.weight), name


@pytest.mark.parametrize("name", [name for name in layouts() if not name.startswith("fp8")])
def test_products_are_those_of_the_floats(name: str, tmp_path: Path) -> None:
    model = write(reference(), tmp_path, layouts()[name])
    for group, source in sources(tmp_path).items():
        assert isinstance(source.weight, Int4Weight)
        modules = modules_of(model, group)
        x = torch.randn(5, modules[0].in_features)
        meant = torch.cat([module(x) for module in modules], 1)
        got = linear_int4(x, source.weight, torch.full_like(meant, float("nan")))
        torch.testing.assert_close(got, meant, rtol=1e-4, atol=1e-4)


def scale_rows(_: Any, inputs: tuple[torch.Tensor]) -> torch.Tensor:
    """What FP8 products make of their input."""
    x = inputs[0][0]
    quantized, scale = torch.empty_like(x, dtype=torch.float8_e4m3fn), torch.empty(len(x))
    quantize_rows(x, quantized, scale)
    return (quantized.float() * scale[:, None])[None]


@pytest.mark.parametrize("name", layouts())
def test_logits_are_those_of_the_floats(name: str, tmp_path: Path) -> None:
    model = write(reference(), tmp_path, layouts()[name])
    text = prompts((40,))[0]
    (got,) = PagedRun(loaded(tmp_path), 1).step([(0, text)])
    ratio = 1e-4
    if name.startswith("fp8"):
        ratio = 0.02  # some numbers lie so close between two of e4m3 that the order of a sum decides
        for group in GROUPS:
            for module in modules_of(model, group):
                module.register_forward_pre_hook(scale_rows)
    wanted = reference_logits(model, text)
    assert (got - wanted).norm() < ratio * wanted.norm()


def test_biases_come_along(tmp_path: Path) -> None:
    model = write(reference("qwen2, yarn"), tmp_path, layouts()["awq"])
    source = sources(tmp_path)["qkv"]
    assert isinstance(source.weight, Int4Weight)
    assert source.bias_N is None
    bias = source.weight.bias_N
    assert bias is not None
    assert torch.equal(bias, torch.cat([module.bias for module in modules_of(model, "qkv")]))


def test_scales_of_modules_stay_their_own(tmp_path: Path) -> None:
    """q, k and v have one FP8 scale each: fused, one per channel; o has one still."""
    write(reference(), tmp_path, layouts()["fp8"])
    fused, alone = (sources(tmp_path)[group].weight for group in ("qkv", "o"))
    assert isinstance(fused, Fp8Weight)
    assert isinstance(alone, Fp8Weight)
    assert fused.per_channel
    assert len(set(fused.scale.tolist())) == 3
    assert not alone.per_channel


@pytest.mark.parametrize(
    ("name", "ignored", "kept"),
    [
        ("awq", {"modules_to_not_convert": ["down_proj"]}, ["down_proj"]),
        ("int4", {"ignore": ["lm_head", "re:.*mlp.*"]}, ["gate_proj", "up_proj", "down_proj"]),
        ("fp8", {"ignore": ["lm_head", "model.layers.0.self_attn.o_proj"]}, ["o_proj"]),
    ],
)
def test_modules_left_out_are_floats(
    name: str, ignored: dict[str, list[str]], kept: list[str], tmp_path: Path
) -> None:
    layout = layouts()[name]
    model = write(reference(), tmp_path, layout, kept)
    set_fields(tmp_path, layout.fields | ignored)
    for group, source in sources(tmp_path).items():
        assert isinstance(source.weight, torch.Tensor) == (GROUPS[group][0] in kept)
        assert torch.equal(dense(source), torch.cat([module.weight for module in modules_of(model, group)]))


def test_refuses_a_group_of_both_kinds(tmp_path: Path) -> None:
    layout = layouts()["awq"]
    write(reference(), tmp_path, layout, ["k_proj"])
    set_fields(tmp_path, layout.fields | {"modules_to_not_convert": ["k_proj"]})
    with pytest.raises(ValueError, match=r"leaves model\.layers\.0\.self_attn\.k_proj as floats"):
        sources(tmp_path)


def rewrite(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    tensors = load_file(folder / SINGLE_FILE)
    for name, tensor in change.items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, folder / SINGLE_FILE)


Q = "model.layers.0.self_attn.q_proj."
O = "model.layers.0.self_attn.o_proj."  # noqa: E741


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("awq", {Q + "qzeros": None}, "lacks .*q_proj.qzeros"),
        ("awq", {Q + "weight": torch.zeros(128, 128)}, "does not explain: .*q_proj.weight"),
        ("awq", {Q + "g_idx": torch.zeros(128)}, "does not explain: .*q_proj.g_idx"),
        ("awq", {Q + "bias": torch.ones(128)}, "does not explain: .*q_proj.bias"),
        ("awq", {Q + "qweight": torch.zeros(16, 128, dtype=torch.int32)}, r"qweight has shape \(16, 128\)"),
        ("awq", {Q + "scales": torch.zeros(1, 128, dtype=torch.int32)}, "scales is stored as I32"),
        ("gptq", {Q + "qweight": torch.zeros(16, 128)}, "qweight is stored as F32"),
        ("gptq", {O + "g_idx": torch.zeros(128, dtype=torch.int32)}, ""),
        ("gptq", {Q + "g_idx": torch.arange(128).int() % 2}, "g_idx does not assign 128 inputs"),
        ("gptq", {Q + "scales": torch.full((1, 128), 0.1)}, "neither bf16 nor fp16"),
        ("gptq", {O + "scales": torch.full((1, 128), float("nan")).half()}, "not finite"),
        ("int4", {Q + "weight_shape": torch.tensor([128, 64])}, r"weight_shape is \[128, 64\]"),
        ("fp8", {Q + "weight": torch.zeros(128, 128)}, "weight is stored as F32; .* F8_E4M3"),
        ("fp8", {Q + "weight_scale": torch.ones(128, 1)}, r"weight_scale has shape \(128, 1\)"),
        ("fp8", {Q + "weight_scale": torch.zeros(1)}, "positive"),
        ("fp8", {Q + "input_scale": None}, "lacks .*input_scale"),
        ("fp8, channels", {Q + "weight_scale": torch.ones(1)}, r"weight_scale has shape \(1,\)"),
    ],
)
def test_refuses_tensors_by_name(
    name: str, change: dict[str, torch.Tensor | None], message: str, tmp_path: Path
) -> None:
    write(reference(wide=False), tmp_path, layouts()[name])
    rewrite(tmp_path, change)

    def load() -> None:
        for source in sources(tmp_path).values():
            dense(source)

    if not message:  # a group index that is what it has to be
        load()
        return
    with pytest.raises(ValueError, match=message):
        load()


def test_refuses_modules_in_different_orders(tmp_path: Path) -> None:
    model = reference()
    write(model, tmp_path, layouts()["gptq, activation order"])
    order = load_file(tmp_path / SINGLE_FILE)[Q + "g_idx"]
    rewrite(tmp_path, {Q + "g_idx": order.flip(0).contiguous()})
    with pytest.raises(ValueError, match=r"k_proj: g_idx differs from that of .*q_proj"):
        sources(tmp_path)


def test_refuses_groups_that_do_not_fit(tmp_path: Path) -> None:
    write(reference(), tmp_path, layouts()["gptq"])
    set_fields(tmp_path, GPTQ_FIELDS | {"group_size": 384})
    with pytest.raises(ValueError, match="group_size 384 does not divide 256 inputs"):
        sources(tmp_path)
