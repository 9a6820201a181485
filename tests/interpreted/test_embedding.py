"""The Triton embedding against the reference, interpreted."""

import pytest
import torch

from kernels.embedding import embed
from kernels.embedding.cases import CASES, Case
from kernels.embedding.reference import embed_reference


@pytest.mark.parametrize("case", CASES, ids=str)
def test_as_the_reference(case: Case) -> None:
    inputs = case.inputs()
    out = torch.full((case.num_tokens, case.hidden), float("nan"))
    embed(*inputs, out)
    assert torch.equal(out, embed_reference(*inputs, torch.empty_like(out)))
