"""Measures the time from an adapter's first uploaded byte to its first token, through every step of a tenant.

    python -m benchmarks.onboarding --out F [--uploads N] [--large-rank 128]

starts `rootstock up` twice: with Sapling, and with a larger base of random weights on which an adapter of
that rank has about a hundred megabytes. Each adapter is sent with the stock client in parts, created, polled,
and used for one request as soon as it is ready. Nothing else runs. Every adapter has other bytes, so that
nothing is cached by its content; what the first calibration learns of the base is reused by the next.

A calibration takes the base's size times the samples' tokens, whatever the adapter: it is reported
separately. Sapling's is on the default set that comes with it. The larger base comes with a small one, whose
tokens the figures state: random weights know no language, and the general set in their tokens would take many
minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from openai import OpenAI

from benchmarks.local_service import local_service
from benchmarks.random_llama import Shape, random_words, write_adapter, write_base
from benchmarks.report import write_report

ROOT = Path(__file__).resolve().parent.parent
SAPLING = ROOT / "examples" / "sapling" / "weights"
LARGE = Shape(num_layers=8, hidden=1536, num_heads=12, num_kv_heads=4, intermediate=4096, vocab=2048)
FILES = ("adapter_model.safetensors", "adapter_config.json")
NUM_SAMPLES, NUM_WORDS = 16, (12, 12)
"""Of the larger base's default set, and how many are given and scored in each."""
PART_BYTES = 16 << 20
START_S = 300.0
READY_S = 600.0
POLL_S = 0.02


@dataclass(frozen=True)
class Onboarding:
    """One adapter's way, in seconds since its first byte was sent."""

    bytes: int
    uploaded_s: float
    created_s: float
    """The answer to `POST /v1/adapters`: refused would be known here."""
    calibrating_s: float
    """Inspected and packed."""
    ready_s: float
    first_token_s: float
    samples: int
    tokens: int
    """Of the calibration's samples, given and scored."""
    serving_s: float
    reference_s: float
    """Of the calibration, side by side."""

    @property
    def without_calibration_s(self) -> float:
        """To the first token, had there been nothing to measure."""
        return self.first_token_s - (self.ready_s - self.calibrating_s)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--uploads", type=int, default=5, help="of Sapling's adapters")
    parser.add_argument("--large-uploads", type=int, default=2)
    parser.add_argument("--large-rank", type=int, default=128)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rs-onboarding-") as folder:
        figures = {
            "sapling": _sapling(Path(folder) / "sapling", arguments.uploads),
            "large": _large(Path(folder) / "large", arguments.large_uploads, arguments.large_rank),
        }
    for name, figure in figures.items():
        print(
            f"{name}, {figure['megabytes']:.1f} MB: {figure['first_token_s']:.2f} s to the first token, "
            f"{figure['calibration_s']:.2f} s of them calibration on {figure['tokens']} tokens; "
            f"at most {figure['worst_first_token_s']:.2f} s, without calibration "
            f"{figure['worst_without_calibration_s']:.2f} s"
        )
    write_report(arguments.out, {"benchmark": "onboarding", **figures})
    return 0


def _sapling(folder: Path, uploads: int) -> dict[str, Any]:
    """Its adapters under new names, each with one number changed in its last bit."""
    folder.mkdir(parents=True)
    sources = sorted(path.parent for path in (SAPLING / "adapters").glob("*/adapter_config.json"))
    adapters = [
        variant(sources[number % len(sources)], folder / f"adapter-{number}", number)
        for number in range(uploads)
    ]
    with serving(folder, SAPLING / "base", "sapling", "int8") as (client, base):
        return _summary([onboard(client, base, path) for path in adapters])


def _large(folder: Path, uploads: int, rank: int) -> dict[str, Any]:
    folder.mkdir(parents=True)
    write_base(folder / "base", LARGE)
    _write_samples(folder / "base" / "calibration.jsonl")
    adapters = [folder / f"adapter-{number}" for number in range(uploads)]
    for number, path in enumerate(adapters):
        write_adapter(path, LARGE, rank, seed=number)
    # Random weights do not survive rounding, and the gate would say so: this base is served as it is.
    with serving(folder, folder / "base", "large", "none") as (client, base):
        return _summary([onboard(client, base, path) for path in adapters]) | {"rank": rank}


def _write_samples(path: Path) -> None:
    """What the base brings along for calibrations."""
    rng = np.random.default_rng(1)
    given, scored = NUM_WORDS
    lines = [
        {"prompt": random_words(rng, given), "completion": f" {random_words(rng, scored)}"}
        for _ in range(NUM_SAMPLES)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def variant(source: Path, target: Path, number: int) -> Path:
    """A copy of an adapter with another digest and the same behaviour."""
    shutil.copytree(source, target)
    content = bytearray((source / FILES[0]).read_bytes())
    content[-2 * (number + 1)] ^= 1  # the low byte of a bf16 number
    (target / FILES[0]).write_bytes(content)
    return target


def _summary(runs: list[Onboarding]) -> dict[str, Any]:
    """Medians, and every run: the first too, which pays for what the service loads at its first job."""
    names = ("uploaded_s", "created_s", "calibrating_s", "ready_s", "first_token_s", "without_calibration_s")
    figures: dict[str, Any] = {name: median(getattr(run, name) for run in runs) for name in names}
    figures["calibration_s"] = median(run.ready_s - run.calibrating_s for run in runs)
    figures["worst_first_token_s"] = max(run.first_token_s for run in runs)
    figures["worst_without_calibration_s"] = max(run.without_calibration_s for run in runs)
    figures["samples"], figures["tokens"] = runs[0].samples, runs[0].tokens
    figures["megabytes"] = max(run.bytes for run in runs) / 1e6
    return figures | {"runs": [asdict(run) for run in runs]}


def onboard(client: OpenAI, base: str, adapter: Path, poll_s: float = POLL_S) -> Onboarding:
    """Send one adapter and follow it to its first token. Raises RuntimeError when it fails."""
    began = time.perf_counter()

    def elapsed() -> float:
        return time.perf_counter() - began

    uploads = [_upload(client, adapter / name) for name in FILES]
    uploaded = elapsed()
    body = {"name": adapter.name, "base_model": base, "file_ids": uploads}
    created = client.post("/adapters", body=body, cast_to=dict[str, Any])
    answered = elapsed()
    calibrating = 0.0
    while True:
        version = client.get(f"/adapters/{created['id']}/versions/1", cast_to=dict[str, Any])
        state = version["state"]
        if state != "validating" and not calibrating:
            calibrating = elapsed()
        if state == "ready":
            break
        if state == "failed" or elapsed() > READY_S:
            raise RuntimeError(f"{adapter.name} is {state}: {version.get('error')}")
        time.sleep(poll_s)
    ready = elapsed()
    with client.completions.create(
        model=f"{base}:{adapter.name}", prompt="Hello", max_tokens=1, stream=True
    ) as stream:
        next(iter(stream))
        first_token = elapsed()
    report = client.get(f"/calibration/jobs/{created['calibration_job']}/report", cast_to=dict[str, Any])
    data, cost = report["data"], report["cost"]
    size = sum((adapter / name).stat().st_size for name in FILES)
    return Onboarding(
        bytes=size,
        uploaded_s=uploaded,
        created_s=answered,
        calibrating_s=calibrating,
        ready_s=ready,
        first_token_s=first_token,
        samples=data["num_samples"],
        tokens=data["num_tokens"],
        serving_s=cost["serving_seconds"],
        reference_s=cost["reference_seconds"],
    )


def _upload(client: OpenAI, path: Path) -> str:
    purpose: Any = "adapter"  # the client's types know OpenAI's purposes only
    upload = client.uploads.upload_file_chunked(
        file=path, mime_type="application/octet-stream", purpose=purpose, part_size=PART_BYTES
    )
    assert upload.file is not None
    return upload.file.id


@contextmanager
def serving(folder: Path, base: Path, name: str, quantization: str) -> Iterator[tuple[OpenAI, str]]:
    """`rootstock up` on a base, with one tenant: a client with its key, and the base's name."""
    options = ("--base", str(base), "--base-name", name, "--quantization", quantization)
    with local_service(folder, *options, start_s=START_S) as service:
        service.operate("tenant", "create", "bench")
        key = service.operate("key", "create", "bench").split()[-1]
        yield OpenAI(base_url=service.base_url, api_key=key), name


if __name__ == "__main__":
    sys.exit(main())
