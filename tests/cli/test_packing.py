"""Packing from the command line computes with one thread unless the environment says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cli.errors import CliError
from cli.service_access import pack_adapters

SAPLING = Path(__file__).resolve().parents[2] / "examples/sapling/weights"
PIRATE = {"pirate": SAPLING / "adapters/pirate"}


@pytest.fixture(autouse=True)
def _many_threads() -> Iterator[None]:
    """As torch has them on a machine of five cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    yield
    torch.set_num_threads(before)


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
