"""Kills engines and ranks of a running service with SIGKILL under streams; compares answers, ledger, limit.

    python -m benchmarks.replica_kills --replicas 2 --tensor-parallel 2 --out benchmarks/results/F.json

`rootstock up --demo` runs on sapling. Before each kill, streams on the base and on its adapters are all under
way; the next one waits until every engine serves again, without help. The exit status is 0 when no token that
a client received is missing from the ledger, none is there twice, and the tenant's limit counts what was
delivered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
import psycopg
from sqlalchemy import make_url

from benchmarks.report import conclude
from benchmarks.sse_client import HttpError, post_for_events
from cli.programs import CHECKOUT

START_S = 600.0
BACK_S = 120.0
SETTLE_S = 120.0
MAX_TOKENS = 120
UNDER_WAY = 4
"""Tokens that each stream has received when a process is killed."""
LIMIT = "tokens_per_day"
_RANK = b"engine.parallel.rank"


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


class Service:
    """A running `rootstock up --demo` in a folder."""

    def __init__(self, folder: Path, num_engines: int, *options: str) -> None:
        self.folder, self.num_engines = folder, num_engines
        command = [*(sys.executable, "-m", "cli.main", "up", "--demo", "--port", "0"), *options]
        with (folder / "up.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--data", str(folder / "data")], cwd=CHECKOUT, stdout=log, stderr=log
            )

    async def start(self) -> None:
        """Waits until it serves, and gives its tenant a limit that counts all tokens."""
        facts = self.folder / "data" / "demo.json"
        await self._until(facts.exists, START_S, "the service")
        self.facts = json.loads(facts.read_text())
        serving = json.loads((self.folder / "data" / "serving.json").read_text())
        self.environment = {**os.environ, **serving["environment"]}
        limit = ("plan", "set", "demo", "--limit", f"{LIMIT}=1000000000")
        command = [*(sys.executable, "-m", "cli.main"), *limit]
        await asyncio.to_thread(
            subprocess.run, command, env=self.environment, cwd=CHECKOUT, check=True, stdout=subprocess.DEVNULL
        )
        await asyncio.sleep(2)  # plans apply within a second
        await self.wait_until_whole()

    @property
    def models(self) -> list[str]:
        base = self.facts["base"]
        return [base, *(f"{base}:{name}" for name in self.facts["adapters"])]

    @property
    def base_url(self) -> str:
        return str(self.facts["base_url"])

    def victims(self) -> list[tuple[str, int]]:
        """Returns the kind and process id of the engines that run requests, and of their other ranks; of all
        engines if heartbeats, which are up to half a second old, say that none does.
        """
        engines = [pid for pid in _children(self._process.pid) if b"serve-engine" in _read(pid, "cmdline")]
        running = self._figures("rootstock_requests_running")
        busy = [pid for pid in engines if running.get(_engine_id(pid))] or engines
        ranks = [pid for engine in busy for pid in _children(engine) if _RANK in _read(pid, "cmdline")]
        return [("engine", pid) for pid in busy] + [("rank", pid) for pid in ranks]

    def _figures(self, name: str) -> dict[str, float]:
        """Returns a metric of each engine, by its id. Raises httpx.HTTPError."""
        shown = httpx.get(f"{self.base_url.removesuffix('/v1')}/metrics", timeout=5).text
        found = re.findall(rf'^{name}{{replica="([^"]+)"}} (\S+)$', shown, re.MULTILINE)
        return {replica: float(value) for replica, value in found}

    async def wait_until_whole(self) -> None:
        """Waits until all engines serve."""

        def is_whole() -> bool:
            try:
                return sum(self._figures("rootstock_engine_up").values()) == self.num_engines
            except httpx.HTTPError:
                return False

        await self._until(is_whole, BACK_S, "all engines")

    def limit(self) -> tuple[int, int]:
        """Returns what the tenant's limit counts as used and as reserved."""
        answer = httpx.get(
            f"{self.base_url}/organization/limits",
            headers={"authorization": f"Bearer {self.facts['admin_api_key']}"},
            params={"limit": 100},
            timeout=10,
        )
        found = [one for one in answer.json()["data"] if one["metric"] == LIMIT]
        return sum(one["used"] or 0 for one in found), sum(one["held"] or 0 for one in found)

    def ledger(self) -> dict[str, tuple[int, int, str | None]]:
        """Returns prompt and completion tokens and the end of each request."""
        url = make_url(self.environment["ROOTSTOCK_DB_OWNER_URL"]).set(drivername="postgresql")
        query = "SELECT request_id, prompt_tokens, completion_tokens, finish_reason FROM usage_records"
        with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
            rows = connection.execute(query).fetchall()
        ledger = {row[0]: (row[1], row[2], row[3]) for row in rows}
        if len(ledger) < len(rows):
            raise ValueError("a request has two rows in the ledger")
        return ledger

    async def wait_until_settled(self, ids: set[str]) -> None:
        """Waits until the ledger has the end of every request, and the limit holds nothing."""

        def is_settled() -> bool:
            ledger = self.ledger()
            return all(one in ledger and ledger[one][2] is not None for one in ids) and not self.limit()[1]

        await self._until(is_settled, SETTLE_S, "the ledger")

    def stop(self) -> int:
        self._process.terminate()
        try:
            return self._process.wait(120)
        finally:
            self._process.kill()

    async def _until(self, holds: Any, seconds: float, what: str) -> None:
        until = time.monotonic() + seconds
        while not await asyncio.to_thread(holds):
            if self._process.poll() is not None or time.monotonic() > until:
                raise TimeoutError(f"{what}: not within {seconds:g} s; see {self.folder / 'up.log'}")
            await asyncio.sleep(0.2)


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
    kind, victim = random.choice(await asyncio.to_thread(service.victims))
    os.kill(victim, signal.SIGKILL)
    began = time.monotonic()
    for answer in answers:
        answer.was_hit = not answer.has_ended
    await asyncio.gather(*tasks)
    await service.wait_until_whole()
    return kind, answers, time.monotonic() - began


def compared(
    answers: list[Answer], ledger: dict[str, tuple[int, int, str | None]], used: int
) -> dict[str, Any]:
    """Returns how answers, ledger and limit differ.

    What a killed engine had generated and not delivered is billed, and not counted by the limit, which counts
    what was delivered.
    """
    lost = double = unequal = 0
    delivered = 0
    for answer in answers:
        prompt, completion, _ = ledger.get(answer.id, (0, 0, None))
        delivered += prompt + answer.received
        lost += max(0, answer.received - completion)
        if not answer.is_broken:
            double += max(0, completion - answer.received)
            usage = answer.usage or {}
            unequal += (prompt, completion) != (usage.get("prompt_tokens"), usage.get("completion_tokens"))
        else:
            double += max(0, completion - MAX_TOKENS)
    return {
        "streams": len(answers),
        "under_way": sum(answer.was_hit for answer in answers),
        "broken": sum(answer.is_broken for answer in answers),
        "refused": sum(not answer.id for answer in answers),
        "tokens_received": sum(answer.received for answer in answers),
        "tokens_in_ledger": sum(row[1] for row in ledger.values()),
        "tokens_lost": lost,
        "tokens_double": double,
        "usage_differs": unequal,
        "requests_not_asked_for": len(ledger.keys() - {answer.id for answer in answers}),
        "limit_off": used - delivered,
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
    random, answers, kinds, back = Random(seed), [], Counter[str](), []
    await service.start()
    before = await asyncio.to_thread(service.ledger)
    used_before = service.limit()[0]
    until = time.monotonic() + seconds
    while kinds.total() < kills and time.monotonic() < until:
        kind, more, took = await kill_once(service, random, num_streams, kinds.total())
        kinds[kind] += 1
        answers += more
        back.append(took)
        print(
            f"{kinds.total()}: {kind}, {sum(one.was_hit for one in more)} under way, "
            f"{sum(one.is_broken for one in more)} broken, back after {took:.1f} s",
            flush=True,
        )
    await service.wait_until_settled({answer.id for answer in answers if answer.id})
    ledger = {id_: row for id_, row in service.ledger().items() if id_ not in before}
    figures = compared(answers, ledger, service.limit()[0] - used_before)
    back.sort()
    return {
        "seed": seed,
        "kills": kinds.total(),
        "kills_by_kind": dict(sorted(kinds.items())),
        "back_after_s": {"p50": round(back[len(back) // 2], 1), "max": round(back[-1], 1)},
        **figures,
    }


def _children(pid: int) -> Iterator[int]:
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            yield from map(int, listed.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue


def _engine_id(pid: int) -> str:
    named = b"ROOTSTOCK_ENGINE_ENGINE_ID="
    found = [one for one in _read(pid, "environ").split(b"\0") if one.startswith(named)]
    return found[0].removeprefix(named).decode() if found else "engine-0"


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replica_kills", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no kill begins later than that")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="rs-kills-"))
    sizes = ("--replicas", str(options.replicas), "--tensor-parallel", str(options.tensor_parallel))
    service = Service(folder, options.replicas, *sizes, "--quantization", "none")
    clean = False
    try:
        figures = asyncio.run(run(service, options.kills, options.streams, options.seed, options.seconds))
        figures |= {"replicas": options.replicas, "tensor_parallel": options.tensor_parallel}
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
