"""Damages the files of the usage journal at random places, and checks what is lost and whether the books show
it.

    python -m benchmarks.journal_damage --damage 100 --out benchmarks/results/cpu-.../journal-damage.json

In each round the meter of an engine counts requests, with its journal going to Redis or, while that is down,
to the spool, and is killed with SIGKILL. Then one file is damaged at a random place (bytes changed or zeroed,
cut short, removed), or Redis is emptied. The next start bills what it finds, a worker's meter drains the
journal into PostgreSQL, and the service reconciles its books. A witness has recorded every token before it
was sent.

The exit status is 0 when every token sent is in the ledger or in a gap that reconciliation names, with at
least that many tokens, and when no request is billed more than was counted. A gap may name more: tokens of a
lost event that a later event of the same request has too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import redis
import redis.asyncio
import structlog
from sqlalchemy import text

from benchmarks.report import conclude
from billing.metering import JournalMeter
from billing.reconciliation.service import ReconciliationService
from cli.local.postgres import serving_url, start_postgres
from cli.local.redis import start_redis
from db import schema
from db.session import EVERY_TENANT, Database
from engine.journal.meter import HISTORY, SPOOL, TABLE, TOTALS, Meter
from engine.journal.usage_journal import JournalError
from engine.protocol import SamplingParams, Submit, Usage, UsageEvent

REDIS = "redis"
TARGETS = (SPOOL, TABLE, TABLE, TOTALS, HISTORY, REDIS)
"""What is damaged, one a round, in turn; the table in two, as its rows are many."""
AWAY = "redis://127.0.0.1:1/0"
CHECKPOINT_TOKENS = 16
"""A long request's events: more often than an engine's, as requests here are shorter."""
REPLAYED_S = 60.0
SHOWN = 20
_NAMED = re.compile(r"(engine-\d+), .* missing, with (\d+) completion tokens")


@dataclass
class Round:
    """One life of an engine, what was done to its files, and what became of its tokens."""

    engine_id: str
    target: str
    damage: str = ""
    sent: dict[str, int] = field(default_factory=dict)
    """By request, completion tokens that went out."""
    counted: dict[str, int] = field(default_factory=dict)
    """The same with those that were about to."""
    lost: int = 0
    named: int = 0
    overbilled: int = 0

    @property
    def unnamed(self) -> int:
        return max(0, self.lost - self.named)


# A life -----------------------------------------------------------------------------------------------------


def live(folder: Path, url: str, engine_id: str, random: Random) -> None:
    """Count requests until a random step, then die of SIGKILL. Each step is witnessed before and after."""
    life = os.urandom(16).hex()
    meter = _meter(folder, url, engine_id, life)
    witness = os.open(folder / "witness", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    open_requests: dict[int, list[Any]] = {}
    made = 0
    for _ in range(random.randrange(5, 80)):
        while len(open_requests) < 12 and random.random() < 0.7:
            made += 1
            row, submit = _admitted(meter, f"{engine_id}-r{made}")
            open_requests[row] = [submit, 0, random.choice((3, 10, 30, 90))]
        rows = [row for row in open_requests if random.random() < 0.9]
        counts = [random.choice((1, 1, 1, 2)) for _ in rows]
        lines = [f"{open_requests[row][0].request_id} {n}\n" for row, n in zip(rows, counts, strict=True)]
        os.write(witness, "".join(f"C {line}" for line in lines).encode())
        meter.count(rows, counts)
        os.write(witness, "".join(f"S {line}" for line in lines).encode())
        _end_step(meter, (engine_id, life), open_requests, rows, counts)
        time.sleep(random.choice((0, 0, 0.002)))
    if random.random() < 0.5:
        time.sleep(0.1)  # what is queued is written
    os.kill(os.getpid(), signal.SIGKILL)


def _end_step(
    meter: Meter,
    engine: tuple[str, str],
    open_requests: dict[int, list[Any]],
    rows: list[int],
    counts: list[int],
) -> None:
    for row, count in zip(rows, counts, strict=True):
        submit, before, wanted = open_requests[row]
        total = open_requests[row][1] = before + count
        if before == 0:
            meter.started(row, _event(submit, engine, total))
        if total >= wanted:
            meter.settle(row, _event(submit, engine, total, "stop"), None)
            del open_requests[row]
        elif total // CHECKPOINT_TOKENS > before // CHECKPOINT_TOKENS:
            meter.checkpoint(row, _event(submit, engine, total))
    meter.end_step()


def live_again(folder: Path, url: str, engine_id: str) -> None:
    """The next start on the same files: bill what is left, wait until the spool is replayed, end well."""
    meter = _meter(folder, url, engine_id, os.urandom(16).hex())
    deadline = time.monotonic() + REPLAYED_S
    while meter.num_spooled:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{meter.num_spooled} events are still spooled")
        time.sleep(0.005)
    meter.close()


def _meter(folder: Path, url: str, engine_id: str, incarnation: str) -> Meter:
    return Meter(
        state_dir=folder,
        redis_url=url,
        engine_id=engine_id,
        incarnation=incarnation,
        on_settled=lambda _: None,
        on_failed=_fail,
    )


def _fail(error: JournalError) -> None:
    raise error


def _admitted(meter: Meter, request_id: str) -> tuple[int, Submit]:
    labels = {"key_id": "key_a", "model": "sapling", "endpoint": "chat.completions"}
    submit = Submit(
        request_id, "tnt_a", [1, 2, 3], SamplingParams(99), labels=labels, submitted_at=round(time.time(), 3)
    )
    return meter.admit(submit), submit


def _event(submit: Submit, engine: tuple[str, str], total: int, reason: str | None = None) -> UsageEvent:
    """`engine`: its id, and that of its incarnation."""
    return UsageEvent(
        request_id=submit.request_id,
        engine_id=engine[0],
        incarnation=engine[1],
        tenant=submit.tenant,
        submitted_at=submit.submitted_at,
        recorded_at=time.time(),
        priority=submit.priority,
        usage=Usage(len(submit.prompt_ids), 0, total),
        labels=submit.labels,
        finish_reason=reason,
    )


# Damage -----------------------------------------------------------------------------------------------------


def damage(path: Path, random: Random) -> str:
    """Damage a file at a random place; what was done."""
    size = path.stat().st_size
    kind = random.choice(("changed", "changed", "zeroed", "overwritten", "cut", "removed"))
    if not size:
        return "empty"
    if kind == "removed":
        path.unlink()
        return kind
    # In the part that is used, more often than not: most of a table is empty rows.
    at = random.randrange(size if random.random() < 0.3 else min(size, 32_768))
    if kind == "cut":
        os.truncate(path, at)
        return f"cut to {at} of {size} bytes"
    length = 1 if kind == "changed" else min(size - at, random.choice((8, 100, 512, 4096, 20_000)))
    with path.open("r+b") as file:
        file.seek(at)
        was = file.read(length)
        file.seek(at)
        if kind == "zeroed":
            file.write(bytes(length))
        elif kind == "changed":
            file.write(bytes([was[0] ^ random.randrange(1, 256)]))
        else:
            file.write(random.randbytes(length))
    return f"{length} bytes at {at} {kind}"


# The rounds -------------------------------------------------------------------------------------------------


def in_child(work: Any, *arguments: Any) -> int:
    """Returns the exit status of `work`, run in a process of its own; minus a signal's number."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(open(os.devnull, "w")))  # noqa: SIM115
        work(*arguments)
        code = 0
    except BaseException:  # noqa: BLE001  a fork must never go on as its parent does
        __import__("traceback").print_exc()
    finally:
        os._exit(code)


def play(number: int, folder: Path, url: str, seed: int) -> Round:
    """One round: a life, its damage, and the next life."""
    random = Random(f"{seed}/{number}")
    one = Round(f"engine-{number}", TARGETS[number % len(TARGETS)])
    folder.mkdir()
    is_away = one.target == SPOOL or (one.target != REDIS and random.random() < 0.5)
    status = in_child(live, folder, AWAY if is_away else url, one.engine_id, random)
    if status != -signal.SIGKILL:
        raise RuntimeError(f"{one.engine_id} ended with status {status}")
    _witnessed(folder / "witness", one)
    if one.target == REDIS:
        with redis.Redis.from_url(url) as client:
            client.flushall()
        one.damage = "emptied"
    else:
        one.damage = damage(folder / one.target, random)
    status = in_child(live_again, folder, url, one.engine_id)
    if status:
        raise RuntimeError(f"{one.engine_id} did not start on damaged files ({one.target}: {one.damage})")
    return one


def _witnessed(path: Path, one: Round) -> None:
    for line in path.read_text().splitlines():
        kind, request_id, count = line.split(" ")
        into = one.counted if kind == "C" else one.sent
        into[request_id] = into.get(request_id, 0) + int(count)


async def billed(database: Database) -> dict[str, int]:
    """Completion tokens in the ledger, by request."""
    async with database.read(EVERY_TENANT) as session:
        rows = await session.execute(text("SELECT request_id, completion_tokens FROM usage_records"))
        return {row[0]: row[1] for row in rows}


async def drained(database: Database, url: str) -> None:
    async with redis.asyncio.Redis.from_url(url) as client:
        await JournalMeter(database, client, "damage").drain()


async def named(database: Database, url: str) -> tuple[dict[str, int], bool]:
    """Tokens that reconciliation names as missing, by engine; whether it says that the books balance."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    later = datetime.now(UTC) + timedelta(minutes=5)
    found: Counter[str] = Counter()
    async with redis.asyncio.Redis.from_url(url) as client:
        service = ReconciliationService(database, client, clock=lambda: later)
        report = await service.reconcile(today - timedelta(days=1), today + timedelta(days=1))
    for one in report.differences:
        match = _NAMED.match(one.what)
        if match is not None:
            found[match[1]] += int(match[2])
    return dict(found), report.balanced


async def run(rounds: int, seed: int, folder: Path, redis_url: str, owner_url: str) -> list[Round]:
    """All rounds on these servers, and what the books say of each."""
    database = Database(serving_url(owner_url))
    played = []
    try:
        for number in range(rounds):
            played.append(await asyncio.to_thread(play, number, folder / f"e{number}", redis_url, seed))
            await drained(database, redis_url)
        ledger = await billed(database)
        missing, balanced = await named(database, redis_url)
    finally:
        await database.close()
    for one in played:
        for request_id, sent in one.sent.items():
            one.lost += max(0, sent - ledger.get(request_id, 0))
            one.overbilled += max(0, ledger.get(request_id, 0) - one.counted[request_id])
        one.named = missing.get(one.engine_id, 0)
    if balanced and any(one.lost for one in played):
        raise RuntimeError("tokens are lost and reconciliation says that the books balance")
    return played


def figures_of(played: list[Round], seed: int) -> dict[str, Any]:
    wrong = [one for one in played if one.unnamed or one.overbilled]
    return {
        "seed": seed,
        "rounds": len(played),
        "damaged": dict(sorted(Counter(one.target for one in played).items())),
        "requests": sum(len(one.sent) for one in played),
        "tokens_sent": sum(sum(one.sent.values()) for one in played),
        "rounds_with_losses": sum(bool(one.lost) for one in played),
        "tokens_lost": sum(one.lost for one in played),
        "tokens_named": sum(one.named for one in played),
        "tokens_unnamed": sum(one.unnamed for one in played),
        "tokens_overbilled": sum(one.overbilled for one in played),
        "tokens_lost_by_file": dict(
            sorted(
                (target, sum(one.lost for one in played if one.target == target)) for target in set(TARGETS)
            )
        ),
        "wrong": [f"{one.engine_id}, {one.target}: {one.damage}" for one in wrong[:SHOWN]],
    }


@contextmanager
def servers(folder: Path) -> Iterator[tuple[str, str]]:
    """URLs of a Redis and of the owner of a migrated database."""
    with ExitStack() as stack:
        cache = stack.enter_context(start_redis(folder, ephemeral=True))
        books = stack.enter_context(start_postgres(folder, ephemeral=True))
        schema.upgrade(books.url, serving_url(books.url))
        yield cache.url, books.url


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.journal_damage", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--damage", type=int, default=100, help="rounds, each with one file damaged")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="rs-damage-"))
    try:
        with servers(folder) as (redis_url, owner_url):
            played = asyncio.run(run(options.damage, options.seed, folder, redis_url, owner_url))
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)
    figures = figures_of(played, options.seed)
    return conclude(figures, options.out, clean=not figures["wrong"])


if __name__ == "__main__":
    sys.exit(main())
