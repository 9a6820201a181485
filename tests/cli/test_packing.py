"""Packing from the command line computes with one thread unless the environment says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cli.errors import CliError
from cli.service_access import note_drafter, pack_adapters
from engine.lora.artifact import artifact_path
from engine.lora.draft_adapters import read_note
from tests.engine.runner.bases import VOCAB_SIZE, write_base, write_draft_adapter
from tests.support.arithmetic import arithmetic_threads

SAPLING = Path(__file__).resolve().parents[2] / "examples/sapling/weights"
PIRATE = {"pirate": SAPLING / "adapters/pirate"}


@pytest.fixture(autouse=True)
def _many_threads() -> Iterator[None]:
    """As torch has them on a machine of five cores."""
    with arithmetic_threads(5):
        yield


def environment(tmp_path: Path) -> dict[str, str]:
    return {
        "ROOTSTOCK_ENGINE_BASE": str(SAPLING / "base"),
        "ROOTSTOCK_ENGINE_ARTIFACTS_DIR": str(tmp_path),
    }


@pytest.mark.parametrize(("told", "expected"), [({}, 1), ({"OMP_NUM_THREADS": "3"}, 3)])
def test_threads_are_bounded(tmp_path: Path, told: dict[str, str], expected: int) -> None:
    refs = pack_adapters(environment(tmp_path) | told, "0" * 64, PIRATE)
    assert refs["pirate"].rank
    assert torch.get_num_threads() == expected


@pytest.mark.parametrize("told", ["0", "-1", "many", "", "٣"])
def test_a_number_of_threads_that_is_none_is_refused(tmp_path: Path, told: str) -> None:
    with pytest.raises(CliError, match=r"OMP_NUM_THREADS is .* set it to 1 or more, or unset it"):
        pack_adapters(environment(tmp_path) | {"OMP_NUM_THREADS": told}, "0" * 64, PIRATE)


def test_a_draft_adapter_is_noted_beside_the_adapter_that_it_guesses_for(tmp_path: Path) -> None:
    base = tmp_path / "base"
    write_base(base, num_hidden_layers=1)
    folder = write_draft_adapter(base, tmp_path / "draft", 1, ahead=3)
    note_drafter(environment(tmp_path), "0" * 64, "a" * 64, folder, base)
    found = read_note(tmp_path, "a" * 64, VOCAB_SIZE)
    assert found is not None
    assert found.num_ahead == 3
    assert artifact_path(tmp_path, found.ref.digest).exists()
    (folder / "drafter.json").unlink()
    with pytest.raises(CliError, match=r"drafter\.json: the file is missing"):
        note_drafter(environment(tmp_path), "0" * 64, "a" * 64, folder, base)
