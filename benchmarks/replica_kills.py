"""Kills processes of a running service with SIGKILL under streams; compares answers, ledger and limit.

    python -m benchmarks.replica_kills --replicas 2 --tensor-parallel 2 --out benchmarks/results/F.json
    python -m benchmarks.replica_kills --replicas 2 --ray --out benchmarks/results/F.json

`rootstock up --demo` runs on sapling. Victims are its engines and their ranks, and with `--ray` also the Ray
nodes that joined and the Ray head. Before each kill, streams on the base and on its adapters are all under
way; the next one waits until every engine serves again, without help. The exit status is 0 when no token that
a client received is missing from the ledger, none is there twice, and the tenant's limit counts exactly what
the ledger has.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.replica_kills_site import RayService, Service, Victim
from benchmarks.report import conclude
from benchmarks.sse_client import HttpError, post_for_events

MAX_TOKENS = 120
UNDER_WAY = 4
"""Tokens that each stream has received when a process is killed."""


@dataclass
class Answer:
    """One stream as its client saw it."""

    id: str = ""
    received: int = 0
    usage: dict[str, Any] | None = None
    is_broken: bool = False
    has_ended: bool = False
    was_hit: bool = False
    """Under way when a process was killed."""


async def stream(service: Service, model: str, number: int, answer: Answer) -> None:
    """Reads one stream into `answer`, to its end or to its error."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"Tell me about number {number}."}],
        "max_tokens": MAX_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,  # a chunk may have several tokens: their log-probabilities count them
    }
    headers = {"Authorization": f"Bearer {service.facts['api_key']}"}
    try:
        async with post_for_events(f"{service.base_url}/chat/completions", body, headers) as events:
            async for event in events:
                chunk = json.loads(event.data)
                if "error" in chunk:
                    answer.is_broken = True
                    continue
                answer.id = chunk["id"]
                answer.usage = chunk.get("usage") or answer.usage
                for choice in chunk["choices"]:
                    answer.received += len(((choice.get("logprobs") or {}).get("content")) or ())
    except (HttpError, OSError, EOFError):
        answer.is_broken = True
    finally:
        answer.has_ended = True


async def kill_once(
    service: Service, random: Random, num_streams: int, number: int
) -> tuple[str, list[Answer], float]:
    """Kills one process under streams. Returns its kind, the streams, and the seconds until all engines
    served again.
    """
    answers = [Answer() for _ in range(num_streams)]
    models = service.models
    tasks = [
        asyncio.create_task(
            stream(service, models[index % len(models)], number * num_streams + index, answer)
        )
        for index, answer in enumerate(answers)
    ]
    while not all(answer.received >= UNDER_WAY or answer.has_ended for answer in answers):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await asyncio.sleep(random.uniform(0, 0.2))
    victim = chosen(await asyncio.to_thread(service.victims), random)
    os.kill(victim.pid, signal.SIGKILL)
    began = time.monotonic()
    for answer in answers:
        answer.was_hit = not answer.has_ended
    await asyncio.gather(*tasks)
    await service.wait_until_back(victim)
    return victim.kind, answers, time.monotonic() - began


def chosen(victims: list[Victim], random: Random) -> Victim:
    """Returns one of a kind at random: however many processes a kind has, each kind is as likely."""
    kind = random.choice(sorted({victim.kind for victim in victims}))
    return random.choice([victim for victim in victims if victim.kind == kind])


def compared(
    answers: list[Answer], ledger: dict[str, tuple[int, int, str | None]], used: int
) -> dict[str, Any]:
    """Returns how answers, ledger and limit differ.

    What a killed engine had generated and not delivered is billed, and the limit counts what is billed.
    `used`: what the limit has counted.
    """
    lost = double = unequal = undelivered = 0
    for answer in answers:
        prompt, completion, _ = ledger.get(answer.id, (0, 0, None))
        lost += max(0, answer.received - completion)
        if not answer.is_broken:
            double += max(0, completion - answer.received)
            usage = answer.usage or {}
            unequal += (prompt, completion) != (usage.get("prompt_tokens"), usage.get("completion_tokens"))
        else:
            double += max(0, completion - MAX_TOKENS)
            undelivered += max(0, completion - answer.received)
    return {
        "streams": len(answers),
        "under_way": sum(answer.was_hit for answer in answers),
        "broken": sum(answer.is_broken for answer in answers),
        "refused": sum(not answer.id for answer in answers),
        "tokens_received": sum(answer.received for answer in answers),
        "tokens_in_ledger": sum(row[1] for row in ledger.values()),
        "tokens_not_delivered": undelivered,
        "tokens_lost": lost,
        "tokens_double": double,
        "usage_differs": unequal,
        "requests_not_asked_for": len(ledger.keys() - {answer.id for answer in answers}),
        "limit_off": used - sum(prompt + completion for prompt, completion, _ in ledger.values()),
    }


def is_clean(figures: dict[str, Any]) -> bool:
    wrong = (
        "refused",
        "tokens_lost",
        "tokens_double",
        "usage_differs",
        "requests_not_asked_for",
        "limit_off",
    )
    return not any(figures[name] for name in wrong)


async def run(service: Service, kills: int, num_streams: int, seed: int, seconds: float) -> dict[str, Any]:
    """Kills until that was done `kills` times, or `seconds` are over. Returns the figures."""
    random, answers = Random(seed), list[Answer]()
    back: dict[str, list[float]] = {}
    await service.start()
    before = await asyncio.to_thread(service.ledger)
    used_before = service.limit()[0]
    until = time.monotonic() + seconds
    for number in range(kills):
        if time.monotonic() > until:
            break
        kind, more, took = await kill_once(service, random, num_streams, number)
        back.setdefault(kind, []).append(took)
        answers += more
        print(
            f"{number + 1}: {kind}, {sum(one.was_hit for one in more)} under way, "
            f"{sum(one.is_broken for one in more)} broken, back after {took:.1f} s",
            flush=True,
        )
    await service.wait_until_settled({answer.id for answer in answers if answer.id})
    ledger = {id_: row for id_, row in service.ledger().items() if id_ not in before}
    return {
        "seed": seed,
        "kills": sum(map(len, back.values())),
        "kills_by_kind": {kind: len(took) for kind, took in sorted(back.items())},
        "back_after_s": {kind: _summary(took) for kind, took in sorted(back.items())},
        **compared(answers, ledger, service.limit()[0] - used_before),
    }


def _summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"p50": round(ordered[len(ordered) // 2], 1), "max": round(ordered[-1], 1)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replica_kills", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--ray", action="store_true", help="on Ray, each engine on a node of its own")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no kill begins later than that")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="rs-kills-"))
    settings = ("--tensor-parallel", str(options.tensor_parallel), "--quantization", "none")
    service = (RayService if options.ray else Service)(folder, options.replicas, *settings)
    clean = False
    try:
        figures = asyncio.run(run(service, options.kills, options.streams, options.seed, options.seconds))
        figures |= {
            "replicas": options.replicas,
            "tensor_parallel": options.tensor_parallel,
            "ray": options.ray,
        }
        clean = is_clean(figures)
    finally:
        service.stop()
        if clean:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"kept: {folder}")
    return conclude(figures, options.out, clean=clean)


if __name__ == "__main__":
    sys.exit(main())
