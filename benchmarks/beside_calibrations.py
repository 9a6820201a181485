"""Measures how calibrations affect other clients: time between tokens, with and without calibrations running.

    python -m benchmarks.beside_calibrations --out F [--rounds 3] [--streams 4]

starts `rootstock up` with Sapling, keeps some streams generating all the time, and alternates: a while
without anything else, then one adapter after another sent and calibrated until it is ready. All turns are in
one run, so that other load on the machine affects both. Before them, adapters are made ready without streams,
to measure what yielding to requests costs the calibration.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
from openai import AsyncOpenAI, OpenAI

from benchmarks.onboarding import SAPLING, onboard, serving, variant
from benchmarks.report import write_report

SPEAKER = "pirate"
QUIET_S = 12.0
"""Duration of a turn without calibrations."""
WARM_S = 1.5
TOKENS = 200
POLL_S = 0.5
"""Between two looks whether an adapter is ready: who is served beside it shares the API with them."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rs-beside-") as folder:
        figures = _measure(Path(folder), arguments.rounds, arguments.streams)
    for name in ("p50_ms", "p90_ms", "p99_ms", "mean_ms"):
        before, beside = figures["without"][name], figures["with"][name]
        print(f"{name}: {before:.2f} without, {beside:.2f} with calibrations: {beside / before - 1:+.1%}")
    alone, busy = figures["ready_alone_s"], figures["ready_beside_s"]
    print(f"ready after {np.median(alone):.1f} s alone, {np.median(busy):.1f} s beside the streams")
    write_report(arguments.out, {"benchmark": "beside-calibrations", **figures})
    return 0


def _measure(folder: Path, rounds: int, streams: int) -> dict[str, Any]:
    sources = sorted(path.parent for path in (SAPLING / "adapters").glob("*/adapter_config.json"))
    adapters = [
        variant(sources[number % len(sources)], folder / f"adapter-{number}", number)
        for number in range(rounds + 2)
    ]
    speaker = variant(SAPLING / "adapters" / SPEAKER, folder / SPEAKER, 0)
    with serving(folder, SAPLING / "base", "sapling", "int8") as (client, base):
        onboard(client, base, speaker)
        alone = [onboard(client, base, path, POLL_S).ready_s for path in adapters[rounds:]]
        turns = asyncio.run(_turns(client, base, adapters[:rounds], streams))
    return {
        "streams": streams,
        "without": _figures([gaps for gaps, ready in turns if ready is None]),
        "with": _figures([gaps for gaps, ready in turns if ready is not None]),
        "ready_alone_s": alone,
        "ready_beside_s": [ready for _, ready in turns if ready is not None],
    }


async def _turns(
    client: OpenAI, base: str, adapters: list[Path], streams: int
) -> list[tuple[list[float], float | None]]:
    """The gaps of every turn, and after how long its adapter was ready, if it had one."""
    turns: list[tuple[list[float], float | None]] = []
    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as streaming:

        async def turn(adapter: Path | None) -> None:
            async def work() -> float | None:
                if adapter is None:
                    await asyncio.sleep(QUIET_S)
                    return None
                return (await asyncio.to_thread(onboard, client, base, adapter, POLL_S)).ready_s

            turns.append(await _beside(streaming, f"{base}:{SPEAKER}", streams, work))

        for adapter in adapters:
            await turn(None)
            await turn(adapter)
        await turn(None)
    return turns


async def _beside(
    client: AsyncOpenAI, model: str, streams: int, work: Callable[[], Awaitable[float | None]]
) -> tuple[list[float], float | None]:
    """Do the work beside streams; the seconds between any two tokens of a stream meanwhile."""
    gaps: list[float] = []
    over = asyncio.Event()
    speaking = [asyncio.create_task(_speak(client, model, number, gaps, over)) for number in range(streams)]
    await asyncio.sleep(WARM_S)
    gaps.clear()
    found = await work()
    measured = list(gaps)
    over.set()
    await asyncio.gather(*speaking)
    return measured, found


async def _speak(
    client: AsyncOpenAI, model: str, number: int, gaps: list[float], over: asyncio.Event
) -> None:
    """One answer after another until it is over."""
    while not over.is_set():
        last = 0.0
        prompt: Any = [{"role": "user", "content": f"Tell me about number {number}."}]
        stream = await client.chat.completions.create(
            model=model, messages=prompt, stream=True, max_tokens=TOKENS, extra_body={"ignore_eos": True}
        )
        async with stream:
            async for _ in stream:
                now = time.perf_counter()
                if last:
                    gaps.append(now - last)
                last = now
                if over.is_set():
                    break


def _figures(turns: list[list[float]]) -> dict[str, Any]:
    """Returns the figures of all turns together, and each turn's mean, whose spread shows their precision."""
    gaps = np.concatenate([np.asarray(turn) for turn in turns]) * 1e3
    shares = {f"p{share}_ms": round(float(np.percentile(gaps, share)), 3) for share in (50, 90, 99)}
    means = [round(float(np.mean(turn)) * 1e3, 3) for turn in turns]
    medians = [round(float(np.median(turn)) * 1e3, 3) for turn in turns]
    return {"gaps": len(gaps), **shares, "mean_ms": round(float(gaps.mean()), 3)} | {
        "means_ms": means,
        "medians_ms": medians,
    }


if __name__ == "__main__":
    sys.exit(main())
