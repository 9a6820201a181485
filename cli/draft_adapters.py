"""Packs draft adapters: for an engine that starts, beside tenants' adapters, and for engines elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from cli.errors import CliError

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


def publish_drafter(data: Path | None, base: Path, folder: Path) -> str:
    """Packs a base's draft adapter into the folder of packed adapters, publishes it in the object store, if
    there is one, and returns its note: the value of ROOTSTOCK_ENGINE_PACKED_DRAFTER. Raises `CliError`.
    """
    from cli.packed_adapters import FOLDER, publish_packed
    from cli.service_access import environment_of, plain_errors, setting, silence_logs
    from engine.lora.draft_adapters import encode_note
    from engine.model.weights import base_digest

    silence_logs()
    environment = environment_of(data)
    artifacts_dir = Path(setting(environment, FOLDER))
    try:
        found = pack_drafter(folder, base, base_digest(base), artifacts_dir)
    except (ValueError, OSError) as error:
        raise CliError(str(error)) from error
    with plain_errors():
        asyncio.run(publish_packed(environment, [found.ref]))
    return encode_note(found).decode()
