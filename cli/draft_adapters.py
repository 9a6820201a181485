"""Packs draft adapters: for an engine that starts, and beside tenants' adapters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.lora.draft_adapters import DraftAdapter


def pack_drafter(folder: Path, base: Path, base_digest: str, artifacts_dir: Path) -> DraftAdapter:
    """Packs the draft adapter in a folder for a base, checked as any adapter is. Loads torch. Raises
    ValueError, which names the file or field.
    """
    from adapters.packing import PackingError, pack
    from engine.lora.draft_adapters import Description, DraftAdapter
    from engine.model.config import load_config

    config = load_config(base)
    description = Description.read(folder, config.vocab_size)
    try:
        # Exact for every training dtype; the engine converts to the type it computes in.
        ref = pack(folder, config, base_digest, artifacts_dir, dtype="float32")
    except PackingError as error:
        raise ValueError(f"draft adapter {folder}: {error}") from error
    return DraftAdapter(ref, description.placeholder_token_id, description.num_ahead)
