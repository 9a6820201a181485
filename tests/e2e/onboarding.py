"""Adapters sent to a running stack with the stock client, as a tenant sends them."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from openai import AsyncOpenAI
from safetensors.numpy import save_file

from examples.sapling import tasks
from tests.e2e.stack import Stack

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
SAPLING = Path(tasks.__file__).parent / "weights" / "adapters"


def sapling_adapter(name: str, folder: Path, number: int) -> Path:
    """One of sapling's adapters, one weight changed in its last bit: other bytes, the same behaviour."""
    shutil.copytree(SAPLING / name, folder)
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-2 * (number + 1)] ^= 1  # the low byte of a bf16 number
    (folder / WEIGHTS).write_bytes(content)
    return folder


def widened_adapter(name: str, folder: Path, rank: int) -> Path:
    """One of sapling's adapters at a higher rank, in fp32 and with zeros where it learned nothing: megabytes
    that behave the same."""
    folder.mkdir(parents=True)
    config = json.loads((SAPLING / name / CONFIG).read_text())
    scaled = config["use_rslora"], config["rank_pattern"], config["alpha_pattern"]
    assert not any(scaled), "its scale is alpha / r, the same everywhere"
    assert config["lora_alpha"] * rank % config["r"] == 0
    arrays = {}
    for key, (dtype, shape, data) in _tensors(SAPLING / name / WEIGHTS).items():
        assert dtype == "BF16"
        array = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)
        more = rank - config["r"]
        arrays[key] = np.pad(array, ((0, more), (0, 0)) if "lora_A" in key else ((0, 0), (0, more)))
    save_file(arrays, folder / WEIGHTS, metadata={"format": "pt"})
    config |= {"lora_alpha": config["lora_alpha"] * rank // config["r"], "r": rank}
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


def _tensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """NumPy has no bfloat16, so the library does not read it for NumPy."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    return {
        key: (one["dtype"], one["shape"], content[begin:][slice(*one["data_offsets"])])
        for key, one in header.items()
    }


async def send_files(client: AsyncOpenAI, folder: Path) -> list[str]:
    """Both files, in parts; their ids."""
    purpose: Any = "adapter"
    ids = []
    for name in (WEIGHTS, CONFIG):
        upload = await client.uploads.upload_file_chunked(
            file=folder / name, mime_type="application/octet-stream", purpose=purpose, part_size=64 * 1024
        )
        assert upload.file is not None
        ids.append(upload.file.id)
    return ids


async def create(
    client: AsyncOpenAI, stack: Stack, name: str, file_ids: list[str], **more: Any
) -> dict[str, Any]:
    body = {"name": name, "base_model": stack.demo["base"], "file_ids": file_ids} | more
    return await client.post("/adapters", body=body, cast_to=dict[str, Any])


async def ready(
    client: AsyncOpenAI, adapter_id: str, version: int = 1, seconds: float = 60.0
) -> dict[str, Any]:
    """The version once it is ready; fails when it fails."""
    async with asyncio.timeout(seconds):
        while True:
            shown = await client.get(f"/adapters/{adapter_id}/versions/{version}", cast_to=dict[str, Any])
            if shown["state"] == "ready":
                return shown
            assert shown["state"] in ("validating", "calibrating"), shown
            await asyncio.sleep(0.05)
