"""Copies of a checkpoint's tensors by way of page-locked memory, from several threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from engine.model import staging
from engine.model.staging import DeviceCopies

pytestmark = pytest.mark.gpu


def test_threads_copy_tensors_of_all_kinds_and_sizes(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_CHUNK_BYTES", 4096)
    torch.manual_seed(5)
    values = {
        f"{dtype}-{shape}": torch.randint(0, 100, shape).to(dtype)
        for dtype in (torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int32, torch.uint8)
        for shape in ((), (0,), (1,), (4096,), (333, 77), (3, 5, 701))
    }
    save_file(values, tmp_path / "all.safetensors")
    copies = DeviceCopies(device)
    with safe_open(tmp_path / "all.safetensors", "pt") as stored:

        def check(name: str) -> None:
            torch.cuda._sleep(
                100_000
            )  # the device is behind: a chunk must not be overwritten before it is read
            copied = copies(stored.get_tensor(name))
            assert copied.is_cuda
            assert copied.dtype == values[name].dtype
            assert copied.shape == values[name].shape
            assert torch.equal(copied.cpu().float(), values[name].float())

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(check, list(values) * 4))


def test_parts_of_a_tensor_are_copied(device: torch.device, tmp_path: Path) -> None:
    whole = torch.randn(300, 500)
    save_file({"whole": whole}, tmp_path / "one.safetensors")
    with safe_open(tmp_path / "one.safetensors", "pt") as stored:
        part = stored.get_slice("whole")[10:200, 100:300]
        torch.testing.assert_close(DeviceCopies(device)(part).cpu(), whole[10:200, 100:300])
