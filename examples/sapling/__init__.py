"""Sapling: a tiny base model and its adapters, with the programs that made them.

Owns: the word lists, the text generator, the adapter tasks, training, evaluation, the packaged weights.
Refuses to know: the serving platform. Nothing here imports from it.
"""

from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"
BASE = WEIGHTS / "base"
ADAPTERS = WEIGHTS / "adapters"
