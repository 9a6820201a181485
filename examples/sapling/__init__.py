"""Sapling: a tiny base model and its adapters, with the programs that made them."""

from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"
BASE = WEIGHTS / "base"
ADAPTERS = WEIGHTS / "adapters"
DRAFTERS = WEIGHTS / "drafters"
