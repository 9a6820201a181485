"""Every op on the device against the same op on a CPU, over the shared cases; outputs start as NaN."""

import pytest
import torch

from kernels.activation import AdapterDelta
from kernels.attention import AttentionPlan, paged_attention
from kernels.attention import cases as attention_cases
from kernels.linear_int8 import Int8Weight, linear_int8
from kernels.linear_int8 import cases as int8_cases
from kernels.rms_norm import cases as norm_cases
from kernels.rms_norm import rms_norm
from kernels.silu_mul import cases as silu_cases
from kernels.silu_mul import silu_mul
from kernels.workspace import Workspace
from tests.gpu.closeness import RATIO, assert_near

pytestmark = pytest.mark.gpu
each_type = pytest.mark.parametrize("dtype", list(RATIO), ids=str)


def poisoned_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full_like(tensor, float("nan"))


def attend(case: attention_cases.Case, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    q, cache = (tensor.to(device) for tensor in case.inputs(dtype))
    if torch.device(device).type == "cpu":
        q, cache = q.float(), cache.float()
    plan = AttentionPlan.build(case.metadata(), case.num_heads, case.num_kv_heads, Workspace(device))
    out = poisoned_like(q)
    paged_attention(q, cache, plan, case.head_dim**-0.5, out)
    return out


@each_type
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("case", attention_cases.CASES, ids=str)
def test_attention(case: attention_cases.Case, dtype: torch.dtype, device: torch.device) -> None:
    assert_near(attend(case, dtype, device), attend(case, dtype, "cpu"), RATIO[dtype])


@pytest.mark.usefixtures("poisoned")
def test_attention_over_many_decodes_of_like_and_unlike_length(device: torch.device) -> None:
    case = attention_cases.Case(tuple((1, 1 + 37 * seq % 700) for seq in range(64)), 8, 2, 64)
    assert_near(attend(case, torch.float32, device), attend(case, torch.float32, "cpu"), 1e-5)


@pytest.mark.parametrize("case", int8_cases.CASES, ids=str)
def test_linear_int8(case: int8_cases.Case, device: torch.device) -> None:
    x, weight, bias = case.inputs()
    plain = Int8Weight.quantize(weight, bias, pack=False)
    there = Int8Weight.quantize(weight.to(device), None if bias is None else bias.to(device))
    assert there.packed is None
    assert plain.values_NK is not None
    assert there.values_NK is not None
    assert torch.equal(there.values_NK.cpu(), plain.values_NK)
    out = torch.full((case.num_rows, case.out_features), float("nan"))
    expected, got = linear_int8(x, plain, out), linear_int8(x.to(device), there, out.to(device))
    for row in range(case.num_rows):
        assert_near(got[row], expected[row], 1e-5)


@each_type
@pytest.mark.parametrize("case", norm_cases.CASES, ids=str)
def test_rms_norm(case: norm_cases.Case, dtype: torch.dtype, device: torch.device) -> None:
    def run(inputs: dict[str, torch.Tensor | None], delta: AdapterDelta | None) -> list[torch.Tensor]:
        x, weight, residual = inputs["x"], inputs["weight"], inputs["residual"]
        assert x is not None
        assert weight is not None
        out = rms_norm(x, weight, 1e-6, poisoned_like(x), residual, delta=delta)
        return [out] if residual is None else [out, residual]

    wide = {name: None if x is None else x.float() for name, x in case.inputs(dtype).items()}
    there = run(case.inputs(dtype, str(device)), case.delta(str(device)))
    for got, expected in zip(there, run(wide, case.delta()), strict=True):
        assert_near(got, expected, RATIO[dtype])


def test_rms_norm_of_strided_heads_in_place(device: torch.device) -> None:
    fused, weight = torch.randn(9, 6, 16), torch.randn(16)
    there = fused.to(device)
    rms_norm(fused[:, 1:4], weight, 1e-6, fused[:, 1:4])
    rms_norm(there[:, 1:4], weight.to(device), 1e-6, there[:, 1:4])
    assert torch.equal(there[:, [0, 4, 5]].cpu(), fused[:, [0, 4, 5]])
    assert_near(there, fused, 1e-6)


@each_type
@pytest.mark.parametrize("case", silu_cases.CASES, ids=str)
def test_silu_mul(case: silu_cases.Case, dtype: torch.dtype, device: torch.device) -> None:
    gate_up = case.inputs(dtype)
    out = torch.full((case.num_rows, case.inner), float("nan"))
    got = silu_mul(gate_up.to(device), out.to(device, dtype), delta=case.delta(str(device)))
    assert_near(got, silu_mul(gate_up.float(), out, delta=case.delta()), RATIO[dtype])
