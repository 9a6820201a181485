"""RoPE against rotation of complex numbers."""

import pytest
import torch

from kernels.rope import rope
from kernels.rope.cases import CASES, Case, rotary_planes


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rotates_each_pair_by_its_angle(case: Case) -> None:
    x, angles = case.inputs()
    first, second = x.double().chunk(2, -1)
    turned = (
        torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles).to(torch.cdouble)[:, None]
    )
    rope(x, rotary_planes(angles))
    torch.testing.assert_close(x.double(), torch.cat((turned.real, turned.imag), -1), rtol=1e-5, atol=1e-6)


def test_touches_only_the_heads_it_is_given() -> None:
    fused = torch.randn(4, 5, 16)
    values = fused[:, 3:].clone()
    before = fused[:, :3].clone()
    rope(fused[:, :3], rotary_planes(torch.full((4, 8), 0.5)))
    assert torch.equal(fused[:, 3:], values)
    assert not torch.equal(fused[:, :3], before)
    torch.testing.assert_close(fused[:, :3].norm(dim=-1), before.norm(dim=-1))


def test_refuses_planes_of_another_shape() -> None:
    with pytest.raises(ValueError, match="rotary"):
        rope(torch.zeros(4, 2, 16), torch.zeros(3, 2, 16))
