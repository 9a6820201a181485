"""Every way to hold a linear layer gives the same layer, up to its rounding; scales stay with their rows."""

import pytest
import torch

from benchmarks.floor import WEIGHT_BYTES
from engine.model.quantization import Linear, check_quantization, make_linear
from kernels.activation import Activation, quantize_rows
from kernels.linear_fp8 import Fp8Weight
from kernels.linear_int4 import Int4Weight

ROUNDING = {"none": 1e-6, "int8": 0.03, "fp8": 0.05, "int4": 0.15}
"""Of norms: e4m3 has three bits after the first for both sides, 4-bit weights about one in ten."""


def activation(x_TK: torch.Tensor, linear: Linear) -> Activation:
    """As the op before the layer leaves it."""
    if not linear.wants_fp8:
        return Activation(x_TK)
    quantized_TK = torch.empty(x_TK.shape, dtype=torch.float8_e4m3fn)
    scale_T = torch.empty(len(x_TK))
    quantize_rows(x_TK, quantized_TK, scale_T)
    return Activation(x_TK, quantized_TK, scale_T)


def run(linear: Linear, x_TK: torch.Tensor, out_features: int) -> torch.Tensor:
    """True values."""
    out = torch.full((len(x_TK), out_features), float("nan"))
    projection = linear(activation(x_TK, linear), out)
    assert projection.y_TN is out
    return out if projection.scale_T is None else out * projection.scale_T[:, None]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("quantization", list(ROUNDING))
def test_every_format_is_the_layer_up_to_its_rounding(quantization: str, with_bias: bool) -> None:
    torch.manual_seed(0)
    weight = torch.randn(96, 256) * 0.05
    bias = torch.randn(96) if with_bias else None
    x = torch.randn(8, 256) * 10.0 ** torch.arange(-4, 4)[:, None]
    plain = x.double() @ weight.double().t()
    got = run(make_linear(quantization, weight, bias), x, 96).double()
    error = got - plain if bias is None else got - bias.double() - plain
    # The bias is rounded in fp32 beside rows that are much smaller than it.
    slack = 0.0 if bias is None else 1e-5
    assert (error.norm(dim=1) <= ROUNDING[quantization] * plain.norm(dim=1) + slack).all()


def test_who_wants_which_activation() -> None:
    weight = torch.randn(32, 256)
    wants = {name: make_linear(name, weight, None).wants_fp8 for name in ROUNDING}
    assert wants == {"none": False, "int8": False, "fp8": True, "int4": False}
    assert make_linear("int4", Int4Weight.quantize(weight, for_fp8=True), None).wants_fp8


def test_a_weight_that_comes_quantised_stays_as_it_is() -> None:
    torch.manual_seed(0)
    values, scale = torch.randn(32, 256).to(torch.float8_e4m3fn), torch.rand(32, 1) + 0.1
    bias = torch.randn(32)
    linear = make_linear("fp8", Fp8Weight.from_checkpoint([(values, scale)], bias), None)
    x = torch.randn(4, 256)
    expected = x.double() @ (values.double() * scale).t() + bias
    error = (run(linear, x, 32).double() - expected).norm() / expected.norm()
    assert error < 0.04  # x alone is rounded


def test_refuses_what_a_device_does_not_have() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    for quantization in ROUNDING:
        check_quantization(quantization, cpu)
    for quantization in ("none", "fp8", "int4"):
        check_quantization(quantization, gpu)
    with pytest.raises(ValueError, match="needs a CPU"):
        check_quantization("int8", gpu)
    with pytest.raises(ValueError, match="unknown quantization"):
        check_quantization("int3", gpu)


def test_what_a_layer_holds_is_what_its_format_takes() -> None:
    """And so what a product reads: whole groups of 128 for the 4-bit codes, as the floor of a step has it."""
    weight = torch.randn(256, 512)
    held = {name: make_linear(name, weight, None).num_bytes for name in ROUNDING}
    scales = 4 * 256
    assert held["none"] == 4 * weight.numel(), "fp32, as it was given"
    assert held["int8"] == weight.numel() + scales
    assert held["fp8"] in (weight.numel() + 4, weight.numel() + scales), "a scale, or one for each channel"
    assert held["int4"] == WEIGHT_BYTES["int4"] * weight.numel()
    assert make_linear("none", weight.bfloat16(), None).num_bytes == WEIGHT_BYTES["none"] * weight.numel()
