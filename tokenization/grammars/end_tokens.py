"""Reads from a base's configuration which tokens end a sequence."""

from __future__ import annotations

import json
from pathlib import Path


def read_eos_ids(base_dir: Path) -> tuple[int, ...]:
    """Returns `eos_token_id` of generation_config.json, else of config.json; empty if neither has it.

    Raises ValueError when a file is not JSON, or the ids are not integers.
    """
    for name in ("generation_config.json", "config.json"):
        file = base_dir / name
        if not file.exists():
            continue
        eos = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
        if eos is None:
            continue
        eos_ids = tuple(eos) if isinstance(eos, list) else (eos,)
        if not all(type(one) is int and one >= 0 for one in eos_ids):
            raise ValueError(f"{file}: eos_token_id must be token ids, not {eos!r}")
        return eos_ids
    return ()
