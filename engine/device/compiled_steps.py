"""Remembers for which steps all compiled kernels are on disk, by a file beside them.

To ask for every kernel of every size of step takes seconds even when all are there. What determines the
kernels is in the note's name: after a change of any of it, or of the code, they are asked for again. Kernels
that were deleted since are compiled when they are first launched.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

import torch
import triton
from triton import knobs

_SOURCES = ("kernels", "engine")


def compiled_steps_note(*settings: object) -> Path:
    """Returns the file that exists once the kernels of these steps are compiled; the caller makes it then.

    Args:
        settings: what determines the steps besides the code and the device; their `repr` counts.
    """
    described = (torch.__version__, triton.__version__, torch.cuda.get_device_name(), _sources(), *settings)
    return Path(knobs.cache.dir) / f"steps-{sha256(repr(described).encode()).hexdigest()[:32]}.compiled"


@cache
def _sources() -> str:
    """Returns the digest of the code that launches and defines kernels."""
    digest = sha256()
    for package in _SOURCES:
        for path in sorted((Path(__file__).parents[2] / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
