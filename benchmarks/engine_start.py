"""Measures how long an engine takes until it can serve, from a checkpoint on disk.

    python -m benchmarks.engine_start --shape llama-3.1-8b --quantization fp8 --out F [--starts 3]

Writes a checkpoint of random bf16 weights in the shape, with a tokenizer of its vocabulary's size. Then
starts `python -m engine.main`: with no compiled kernel on disk, and again after kill -9, with what the
starts before left there. The checkpoint was just written, so the system has it in memory: a disk's time comes
on top.

Seconds are from the start of the process to a line of its log. The last says that all graphs are captured:
no request comes meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.library_vocabulary import train
from benchmarks.random_llama import CHAT_TEMPLATE
from benchmarks.report import write_report
from engine.model.config import ModelConfig
from engine.model.weights import INDEX_FILE, expected_tensors
from engine.planner.shapes import PUBLISHED, published_shape

FILE_BYTES = 5_000_000_000
READY = "engine ready"
CAPTURED = "all graphs captured"
TIMEOUT_S = 400.0


def write_checkpoint(folder: Path, model: str, device: str) -> int:
    """Writes a published model's shape with random bf16 weights. Returns the bytes of its weights."""
    config = published_shape(model)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(PUBLISHED[model] | {"torch_dtype": "bfloat16"}))
    train(config.vocab_size).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    return _write_weights(folder, config, device)


def _write_weights(folder: Path, config: ModelConfig, device: str) -> int:
    generator = torch.Generator(device).manual_seed(0)
    owners: dict[str, str] = {}
    held: dict[str, torch.Tensor] = {}
    num_bytes = num_held = number = 0

    def flush() -> None:
        nonlocal held, num_held, number
        name = f"model-{number:05d}.safetensors"
        save_file(held, folder / name, metadata={"format": "pt"})
        owners.update(dict.fromkeys(held, name))
        held, num_held, number = {}, 0, number + 1

    for name, stored in expected_tensors(config).items():
        values = torch.empty(stored.shape, device=device, dtype=torch.bfloat16)
        values = (
            values.normal_(std=stored.shape[-1] ** -0.5, generator=generator)
            if values.dim() > 1
            else values.fill_(1)
        )
        held[name] = values.cpu()
        num_held += held[name].nbytes
        num_bytes += held[name].nbytes
        if num_held >= FILE_BYTES:
            flush()
    flush()
    index = {"metadata": {"total_size": num_bytes}, "weight_map": owners}
    (folder / INDEX_FILE).write_text(json.dumps(index))
    return num_bytes


def start_once(base: Path, kernels: Path, quantization: str, folder: Path) -> dict[str, Any]:
    """Starts an engine, waits until it could take requests, and kills it. Returns seconds by event of its
    log.
    """
    environment = os.environ | {
        "ROOTSTOCK_ENGINE_BASE": str(base),
        "ROOTSTOCK_ENGINE_BASE_NAME": base.name,
        "ROOTSTOCK_ENGINE_ENDPOINT": f"ipc://{folder}/zmq.sock",
        "ROOTSTOCK_ENGINE_DATA_DIR": str(folder / "data"),
        "ROOTSTOCK_ENGINE_REDIS_URL": f"unix://{folder}/no-redis.sock",  # usage would go to the spool
        "ROOTSTOCK_DEVICE_QUANTIZATION": quantization,
        "TRITON_CACHE_DIR": str(kernels),
        "PYTHONUNBUFFERED": "1",
    }
    seconds: dict[str, Any] = {}
    postponed = 0
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.main"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        elapsed = time.monotonic() - began
        print(f"{elapsed:7.2f} {line.rstrip()}", flush=True)
        entry = _entry(line)
        seconds.setdefault(str(entry.get("event", "")), round(elapsed, 2))
        last = CAPTURED if postponed else READY
        postponed = entry.get("postponed", postponed)
        if last in seconds or elapsed > TIMEOUT_S:
            break
    process.kill()
    process.wait()
    if READY not in seconds:
        raise RuntimeError(f"the engine ended with status {process.returncode} before it was ready")
    return seconds


def _entry(line: str) -> dict[str, Any]:
    """Returns a line of the log, which is JSON; nothing for any other line."""
    try:
        return dict(json.loads(line))
    except (TypeError, ValueError):
        return {}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=sorted(PUBLISHED), default="llama-3.1-8b")
    parser.add_argument("--quantization", default="fp8")
    parser.add_argument("--starts", type=int, default=3, help="how often it is started; the first compiles")
    parser.add_argument(
        "--folder", type=Path, help="where the checkpoint is written, or is; default: temporary"
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    asked = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory(prefix="rs-start-") as scratch:
        folder = Path(scratch)
        base = (asked.folder or folder) / asked.shape
        if not base.exists():
            write_checkpoint(base, asked.shape, device)
        num_bytes = sum(path.stat().st_size for path in base.glob("*.safetensors"))
        print(f"{num_bytes / 1e9:.1f} GB of weights", flush=True)
        torch.cuda.empty_cache()
        starts = [
            start_once(base, folder / "kernels", asked.quantization, folder) for _ in range(asked.starts)
        ]
    figures = {
        "setting": {"shape": asked.shape, "quantization": asked.quantization, "torch": torch.__version__},
        "checkpoint_gb": round(num_bytes / 1e9, 2),
        "ready_s": {"nothing compiled": starts[0][READY], "again": [one[READY] for one in starts[1:]]},
        "all_graphs_s": [one.get(CAPTURED) for one in starts],
        "log_s": starts,
    }
    write_report(asked.out, figures)
    print(json.dumps(figures["ready_s"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
