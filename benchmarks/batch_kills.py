"""Kills processes with SIGKILL while a batch runs, and checks that every line is answered and billed once.

    python -m benchmarks.batch_kills --lines 2000 --kills 20 --out benchmarks/results/F.json

One batch runs on a service of one engine (without a model), two API processes, two workers, Redis and
PostgreSQL, those of `benchmarks.chaos`. As the batch goes on, processes drawn from `--seed` are killed,
several at once from time to time, and started again. At the end its output is compared with its input and
with the ledger, and the service reconciles its books. The exit status is 0 when nothing is lost, doubled or
different.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random, uniform
from typing import Any

import httpx
import psycopg
from sqlalchemy import make_url

from benchmarks.chaos import settled
from benchmarks.chaos_audit import reconciled
from benchmarks.chaos_load import Caller
from benchmarks.chaos_site import APIS, WORKERS, Process, Site, open_site
from benchmarks.report import conclude
from billing.rates import BATCH_TIER

SETTINGS = {"ROOTSTOCK_BATCHES_LEASE_SECONDS": "2", "ROOTSTOCK_BATCHES_POLL_SECONDS": "0.2"}
VICTIMS = ("engine", *APIS, *APIS, *WORKERS, "redis", "postgres")
"""Of which one is drawn; API processes, which run the batch, twice as often."""
ROUNDS = 60
"""Lines that run one after the other, at least: so that a short batch lives long enough to be killed."""
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
LENGTHS = (4, 12, 40, 120)
"""Tokens requested."""
PATIENCE_S = 600.0
ENDED = ("completed", "failed", "expired", "cancelled")


@dataclass(frozen=True)
class Part:
    """One batch of a run.

    Args:
        url: the endpoint of the lines, `CHAT` or `RESPONSES`.
        victims: the processes of which some are drawn to be killed.
    """

    num_lines: int
    kills: int
    url: str = CHAT
    victims: Sequence[str] = VICTIMS


class Kills:
    """The processes of a run, and those of them that were killed during one of its batches."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._running: dict[str, Process] = {}
        self._being_replaced: set[str] = set()
        self.begin(VICTIMS, 0)

    def begin(self, victims: Sequence[str], seed: int) -> None:
        """Another batch begins, of which nothing has been killed yet."""
        self._victims = victims
        self._random = Random(seed)
        self.kills: Counter[str] = Counter()

    async def start(self) -> None:
        for name in ("engine", *APIS, *WORKERS):
            self._running[name] = await self._site.start(name)

    async def kill(self) -> int:
        """Kills one to three processes and starts them again; returns how many."""
        names = {self._random.choice(self._victims) for _ in range(self._random.choice((1, 1, 1, 2, 3)))}
        await asyncio.gather(*(self._replace(name) for name in sorted(names)))
        return len(names)

    async def _replace(self, name: str) -> None:
        self.kills[name.partition("-")[0]] += 1
        if name in ("redis", "postgres"):
            await (self._site.redis if name == "redis" else self._site.postgres).restart()
            return
        self._being_replaced.add(name)
        process = self._running[name]
        process.kill()
        await process.ended
        await asyncio.sleep(uniform(0, 0.5))
        self._running[name] = await self._site.start(name)
        self._being_replaced.discard(name)

    async def keep_running(self) -> None:
        """Starts again what ended by itself, as a worker does that finds no PostgreSQL when it starts."""
        while True:
            for name, process in [*self._running.items()]:
                if process.ended.done() and name not in self._being_replaced:
                    self._running[name] = await self._site.start(name)
            await asyncio.sleep(0.2)


def input_lines(caller: Caller, count: int, seed: int, url: str) -> list[dict[str, Any]]:
    """Returns the lines of the input, on the base model and an adapter."""
    random = Random(seed)
    return [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": url,
            "body": {"model": random.choice(caller.models)}
            | _question(url, f"Question {number}", random.choice(LENGTHS)),
        }
        for number in range(count)
    ]


def _question(url: str, text: str, length: int) -> dict[str, Any]:
    if url == RESPONSES:
        return {"input": text, "max_output_tokens": length}
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": length, "ignore_eos": True}


async def run(folder: Path, parts: Sequence[Part], seed: int) -> list[dict[str, Any]]:
    """Returns the figures of each part of one run in `folder`, an empty one with a short path."""
    (folder / "witnesses").mkdir()
    rounds = max(part.num_lines for part in parts) // ROUNDS
    at_once = {"ROOTSTOCK_BATCHES_CONCURRENCY_PER_BATCH": str(min(32, max(2, rounds)))}
    os.environ |= SETTINGS | at_once
    async with open_site(folder) as site:
        killing = Kills(site)
        await killing.start()
        keeping = asyncio.create_task(killing.keep_running())
        figures, booked = [], set[str]()
        try:
            for part in parts:
                figures.append(await _run_part(site, killing, part, seed, booked))
        finally:
            keeping.cancel()
        return figures


async def _run_part(site: Site, killing: Kills, part: Part, seed: int, booked: set[str]) -> dict[str, Any]:
    """`booked`: requests in the ledger before; those of this part are added."""
    killing.begin(part.victims, seed)
    caller = site.callers[0]
    async with httpx.AsyncClient(
        base_url=site.url,
        headers={"authorization": f"Bearer {caller.key}"},
        timeout=30,
        trust_env=False,
    ) as client:
        lines = input_lines(caller, part.num_lines, seed, part.url)
        began = time.monotonic()
        batch_id = await _create(client, lines, part.url)
        while (done := killing.kills.total()) < part.kills:
            due = part.num_lines * (done + 1) // (part.kills + 1)
            if await _until_progress(site, batch_id, due) in ENDED:
                break
            await killing.kill()
        batch = await _ended(client, batch_id)
        seconds = time.monotonic() - began
        rows = [*await _rows(client, batch["output_file_id"])]
        refused = [*await _rows(client, batch["error_file_id"])]
    await settled(site)
    differences = await reconciled(site.postgres.url, site.redis.url, site.engine_endpoint)
    ledger = {one: tokens for one, tokens in _ledger(site.postgres.url).items() if one not in booked}
    booked.update(ledger)
    return {
        "seed": seed,
        "url": part.url,
        "lines": part.num_lines,
        "status": batch["status"],
        "seconds": round(seconds, 1),
        "kills": killing.kills.total(),
        "kills_by_kind": dict(sorted(killing.kills.items())),
        **compared(lines, rows, refused, ledger),
        "books": differences,
    }


def compared(
    lines: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    refused: list[dict[str, Any]],
    ledger: dict[str, tuple[int, int]],
) -> dict[str, Any]:
    """Returns how the output differs from the input and from the ledger. `ledger`: prompt and completion
    tokens by request.
    """
    answered = Counter(row["custom_id"] for row in [*rows, *refused])
    asked = {line["custom_id"] for line in lines}
    used = {row["response"]["body"]["id"]: row["response"]["body"]["usage"] for row in rows}
    wrong = [request_id for request_id, usage in used.items() if ledger.get(request_id) != _tokens(usage)]
    return {
        "answered": len(rows),
        "refused": len(refused),
        "lost": len(asked - answered.keys()),
        "double": sum(answered.values()) - len(answered),
        "ledger_rows": len(ledger),
        "ledger_differs": len(wrong) + len(ledger.keys() - used.keys()),
    }


def _tokens(usage: dict[str, int]) -> tuple[int, int]:
    """Returns (prompt, completion) tokens of a chat completion's usage, or of a response's."""
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], usage["completion_tokens"]
    return usage["input_tokens"], usage["output_tokens"]


def is_clean(figures: dict[str, Any]) -> bool:
    wrong = ("refused", "lost", "double", "ledger_differs")
    return (
        figures["status"] == "completed" and not any(figures[name] for name in wrong) and not figures["books"]
    )


async def _create(client: httpx.AsyncClient, lines: list[dict[str, Any]], url: str) -> str:
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = await _patiently(
        lambda: client.post("/v1/files", files={"file": ("lines.jsonl", content)}, data={"purpose": "batch"})
    )
    body = {"input_file_id": file.json()["id"], "endpoint": url, "completion_window": "24h"}
    return str((await _patiently(lambda: client.post("/v1/batches", json=body))).json()["id"])


async def _ended(client: httpx.AsyncClient, batch_id: str) -> dict[str, Any]:
    until = time.monotonic() + PATIENCE_S
    while True:
        batch: dict[str, Any] = (await _patiently(lambda: client.get(f"/v1/batches/{batch_id}"))).json()
        if batch["status"] in ENDED:
            return batch
        if time.monotonic() > until:
            raise TimeoutError(f"{batch_id}: {batch}")
        await asyncio.sleep(0.3)


async def _rows(client: httpx.AsyncClient, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    content = await _patiently(lambda: client.get(f"/v1/files/{file_id}/content"))
    return [json.loads(line) for line in content.text.splitlines()]


async def _patiently(ask: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """Asks until there is an answer: whatever was killed just now."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            answer = await ask()
            if answer.status_code == 200:
                return answer
            what = f"{answer.status_code}: {answer.text[:300]}"
        except httpx.HTTPError as error:
            what = repr(error)
        if time.monotonic() > until:
            raise TimeoutError(what)
        await asyncio.sleep(0.2)


async def _until_progress(site: Site, batch_id: str, num_lines: int) -> str:
    """Returns the batch's status once so many lines have a result, or it has ended."""
    query = "SELECT status, completed + failed FROM batches WHERE id = %s"
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            with psycopg.connect(_plain(site.postgres.url), connect_timeout=5) as connection:
                row = connection.execute(query, (batch_id,)).fetchone()
        except psycopg.OperationalError:
            row = None
        if row is not None and (row[1] >= num_lines or row[0] in ENDED):
            return str(row[0])
        await asyncio.sleep(0.05)
    raise TimeoutError(f"{batch_id} makes no progress beyond {row}")


def _ledger(url: str) -> dict[str, tuple[int, int]]:
    """Returns prompt and completion tokens of every line in the ledger. Its key makes a request unique."""
    query = "SELECT request_id, prompt_tokens, completion_tokens FROM usage_records WHERE service_tier = %s"
    with psycopg.connect(_plain(url)) as connection:
        rows = connection.execute(query, (BATCH_TIER,)).fetchall()
    ledger = {row[0]: (row[1], row[2]) for row in rows}
    assert len(ledger) == len(rows), "a request has more than one row"
    return ledger


def _plain(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.batch_kills", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", choices=(CHAT, RESPONSES), default=CHAT, help="the endpoint of the lines")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the data directory and say where it is")
    options = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="rs-kills-"))
    clean = False
    try:
        part = Part(options.lines, options.kills, options.url)
        [figures] = asyncio.run(run(folder, [part], options.seed))
        clean = is_clean(figures)
    finally:
        if options.keep or not clean:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return conclude(figures, options.out, clean=clean)


if __name__ == "__main__":
    sys.exit(main())
