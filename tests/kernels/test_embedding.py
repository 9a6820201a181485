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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parts_of_a_table_add_up_to_it(case: Case) -> None:
    ids, rows, next_ids, table = case.inputs()
    whole = embed(ids, rows, next_ids, table, torch.empty(case.num_tokens, case.hidden))
    each = -(-case.vocab // 3)
    parts = [
        embed(ids, rows, next_ids, table[first : first + each], torch.full_like(whole, float("nan")), first)
        for first in range(0, case.vocab, each)
    ]
    assert torch.equal(sum(parts), whole)


def test_shapes_that_do_not_go_together_are_refused() -> None:
    ids, rows, next_ids, table = CASES[0].inputs()
    with pytest.raises(ValueError, match="embed"):
        embed(ids, rows, next_ids, table, torch.empty(2, 64))
