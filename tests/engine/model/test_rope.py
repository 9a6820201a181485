"""Rotary tables: frequencies against transformers' own, rows that do not depend on how the table grew."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.model.config import parse_config
from engine.model.rope import CHUNK, RotaryTable, rotary_frequencies
from tests.engine.model.checkpoints import LINEAR, LLAMA3, SHAPE, YARN

SCALINGS: list[dict[str, Any]] = [
    LINEAR,
    LLAMA3,
    YARN,
    YARN | {"truncate": False, "beta_fast": 16.0, "beta_slow": 2.0},
    YARN | {"attention_factor": 0.75},
    YARN | {"mscale": 0.7, "mscale_all_dim": 1.3},
    YARN | {"factor": 1.0},
]


def config_of(rope_parameters: dict[str, Any], **fields: Any) -> tuple[Any, LlamaConfig]:
    theirs = LlamaConfig(**(SHAPE | fields), rope_parameters=dict(rope_parameters))
    return parse_config(json.loads(theirs.to_json_string())), theirs


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
def test_frequencies_are_those_of_transformers(scaling: dict[str, Any]) -> None:
    ours, theirs = config_of(scaling, head_dim=64)
    expected, magnitude = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, torch.device("cpu"))
    got, got_magnitude = rotary_frequencies(ours)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)
    assert got_magnitude == pytest.approx(magnitude)


def test_rows_do_not_depend_on_how_the_table_grew() -> None:
    ours, _ = config_of(YARN, max_position_embeddings=3 * CHUNK)
    grown, whole = RotaryTable(ours), RotaryTable(ours)
    positions = torch.tensor([0, 5, CHUNK - 1, CHUNK, 2 * CHUNK + 7])
    rows = [grown.rows(positions[i : i + 1], int(positions[i])) for i in range(len(positions))]
    assert torch.equal(torch.cat(rows), whole.rows(positions, 2 * CHUNK + 7))


def test_the_whole_table_has_the_same_rows_and_stays_where_it_is() -> None:
    ours, _ = config_of(YARN, max_position_embeddings=2 * CHUNK + 5)
    table, grown = RotaryTable(ours), RotaryTable(ours)
    whole = table.whole_P2D
    assert len(whole) >= 2 * CHUNK + 5
    positions = torch.tensor([0, CHUNK, 2 * CHUNK + 4])
    assert torch.equal(whole[positions], grown.rows(positions, 2 * CHUNK + 4))
    table.rows(positions, 2 * CHUNK + 4)
    assert table.whole_P2D.data_ptr() == whole.data_ptr()


def test_refuses_a_position_beyond_the_context() -> None:
    ours, _ = config_of(LINEAR)
    with pytest.raises(ValueError, match="context of 256"):
        RotaryTable(ours).rows(torch.tensor([1024]), 1024)
