"""Known tokens come from the host, unknown ones from what the step before drew."""

import pytest
import torch

from kernels.embedding import embed
from kernels.embedding.cases import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=str)
def test_unknown_tokens_are_those_last_drawn(case: Case) -> None:
    ids, rows, next_ids, table = case.inputs()
    out = torch.full((case.num_tokens, case.hidden), float("nan"))
    embed(ids, rows, next_ids, table, out)
    for token in range(case.num_tokens):
        known = int(ids[token]) if token % 3 else int(next_ids[int(rows[token])])
        assert torch.equal(out[token], table[known])


def test_shapes_that_do_not_go_together_are_refused() -> None:
    ids, rows, next_ids, table = CASES[0].inputs()
    with pytest.raises(ValueError, match="embed"):
        embed(ids, rows, next_ids, table, torch.empty(2, 64))
