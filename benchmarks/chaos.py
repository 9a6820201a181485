"""Kills every process with SIGKILL, repeatedly and under load, and checks what the ledger lost or counted
twice.

    python -m benchmarks.chaos --kills 1000 --out benchmarks/results/cpu-epyc-2-cores/chaos.json

Sixteen clients of five tenants send requests to a service of one engine (without a model), two API processes,
two workers, Redis and PostgreSQL. Each of these is killed, repeatedly and on a schedule of its own, so that
several are down at once: some processes at a chosen call of a function that is about to write, send or delete
something, or just did; the others, and the two stores, at a random moment. Both are drawn from `--seed`. At
the end the service runs undisturbed until the journal is empty and no reservation is held; then every request
is looked up (`benchmarks.chaos_audit`), and the service reconciles its books. The exit status is 0 when
nothing is lost, doubled or different.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import redis.asyncio
from redis.exceptions import RedisError

from benchmarks.chaos_audit import Verdict, audit, budgets_off, reconciled
from benchmarks.chaos_process import Point
from benchmarks.chaos_site import APIS, WORKERS, Process, Site, open_site, told
from benchmarks.report import conclude
from billing.metering import DEAD_LETTERS
from engine.journal.inflight_rows import recover_table
from engine.journal.meter import SPOOL, TABLE
from engine.protocol import JOURNAL_STREAM

SETTLE_S = 180.0
PROGRESS_S = 15.0
SERVED_BYTES = 8_000
"""Some fifty answers, as clients write them down."""


@dataclass(frozen=True)
class Fate:
    """How processes of a kind die."""

    points: tuple[str, ...]
    calls: float
    """Calls of a point that are survived: up to ten to the power of this."""
    seconds: tuple[float, float]
    """The shortest and the longest life; one in five ends while it is being started."""


FATES = {
    "engine": Fate(
        (
            "engine.core:EngineCore.step",
            "engine.journal.inflight_table:InflightTable.add",
            "engine.journal.inflight_table:InflightTable.admit",
            "engine.journal.inflight_table:InflightTable.clear",
            "engine.journal.inflight_table:InflightTable.free",
            "engine.journal.meter:Meter.admit",
            "engine.journal.meter:Meter.count",
            "engine.journal.meter:Meter.end_step",
            "engine.journal.meter:Meter.settle",
            "engine.journal.spool:Spool.append",
            "engine.journal.spool:Spool.consume",
            "engine.transport.server_socket:Transport.send",
            "engine.journal.usage_journal:UsageJournal._replay",
            "engine.journal.usage_journal:UsageJournal._send",
            "engine.journal.usage_journal:UsageJournal._write",
            "engine.journal.usage_journal:UsageJournal.write_now",
        ),
        2.0,
        (0.6, 4.0),
    ),
    "api": Fate(
        (
            "api.openai.reservation:RequestReservation._ended",
            "api.openai.reservation:RequestReservation._settle",
            "api.openai.reservation:RequestReservation.follow",
            "engine.client:EngineClient._on_outputs",
            "engine.client:EngineClient.submit",
            "tenants.quotas.settlement:Settlements._on_reply",
            "tenants.quotas.settlement:Settlements.settle",
            "tenants.quotas.redis_connection:RedisConnection.call",
            "tenants.quotas.quotas:Quotas.reserve",
            "tenants.quotas.quotas:Quotas.settle",
        ),
        1.6,
        (2.0, 10.0),
    ),
    "worker": Fate(
        (
            "billing.metering:JournalMeter._settle",
            "billing.metering:JournalMeter._write",
            "billing.metering:JournalMeter.drain",
            "billing.repository:LedgerWriter.upsert",
            "billing.settling:ReservationSettlement.__call__",
            "db.stream:StreamConsumer._take_abandoned",
            "db.stream:StreamConsumer._take_new",
            "db.stream:StreamConsumer.acknowledge",
        ),
        1.0,
        (1.0, 8.0),
    ),
    "redis": Fate((), 0.0, (3.0, 9.0)),
    "postgres": Fate((), 0.0, (8.0, 30.0)),
}
VICTIMS = ("engine", *APIS, *WORKERS, "redis", "postgres")


@dataclass
class Killing:
    """The schedule of one run, and what became of it."""

    site: Site
    seed: int
    wanted: int
    seen: Path
    """What clients write down."""
    kills: Counter[str] = field(default_factory=Counter)
    """By kind."""
    points: Counter[str] = field(default_factory=Counter)
    """Reached, of those where a process was to die."""
    own_ends: list[str] = field(default_factory=list)
    """Processes that ended by themselves: each is a defect."""
    num_waits: int = 0
    """Workers that did not start while PostgreSQL was down: the supervisor tries again."""
    postgres_away_until: float = 0.0
    running: dict[str, Process] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.kills.total() >= self.wanted

    async def run(self) -> None:
        """Until enough have died; everything runs again then, and nothing is to die."""
        processes = [name for name in VICTIMS if name not in ("redis", "postgres")]
        stores = {"redis": self.site.redis.restart, "postgres": self.site.postgres.restart}
        async with asyncio.TaskGroup() as group:
            for name in processes:
                group.create_task(self._kill_processes(name))
            for name, restart in stores.items():
                group.create_task(self._kill_store(name, restart))
            group.create_task(self._tell())
        for name in processes:
            self.running[name] = await self.site.start(name)

    async def _kill_processes(self, name: str) -> None:
        """One after the other, until enough have died."""
        kind = name.partition("-")[0]
        number = 0
        while not self.is_over:
            number += 1
            random = Random(f"{self.seed}/{name}/{number}")
            point, seconds = drawn(random, FATES[kind])
            if number == 1:
                point = None  # everything works once, before any of it dies
            began = time.monotonic()
            process = await self.site.start(name, point)
            if number == 1:
                await self._served()
            try:
                status = await asyncio.wait_for(asyncio.shield(process.ended), seconds)
            except TimeoutError:
                process.kill()
                status = await process.ended
            else:
                if point is not None and status == -signal.SIGKILL:
                    self.points[f"{'after' if point.after else 'before'} {point.where}"] += 1
            if status == -signal.SIGKILL:
                self.kills[kind] += 1
            elif kind == "worker" and began < self.postgres_away_until:
                self.num_waits += 1
            else:
                self.own_ends.append(f"{name}, life {number}, status {status}, {point}")
            await asyncio.sleep(random.uniform(0, 0.3))

    async def _kill_store(self, name: str, restart: Callable[[], Awaitable[None]]) -> None:
        random = Random(f"{self.seed}/{name}")
        await self._served()
        while True:
            due = time.monotonic() + random.uniform(*FATES[name].seconds)
            while time.monotonic() < due:
                if self.is_over:
                    return
                await asyncio.sleep(0.02)
            self.kills[name] += 1
            if name == "postgres":
                self.postgres_away_until = math.inf
            await restart()
            if name == "postgres":
                self.postgres_away_until = time.monotonic()

    async def _served(self) -> None:
        """Return once clients have had answers."""
        while self.seen.stat().st_size < SERVED_BYTES:  # noqa: ASYNC110  another process writes it
            await asyncio.sleep(0.05)

    async def _tell(self) -> None:
        due = 0.0
        while not self.is_over:
            if time.monotonic() > due:
                print(f"{self.kills.total()} of {self.wanted} killed: {dict(self.kills)}", flush=True)
                due = time.monotonic() + PROGRESS_S
            await asyncio.sleep(0.1)


def drawn(random: Random, fate: Fate) -> tuple[Point | None, float]:
    """Where the next life ends, and after how many seconds if it does not come to that."""
    if random.random() < 0.2:
        return None, random.uniform(0.0, fate.seconds[0])
    seconds = random.uniform(*fate.seconds)
    if random.random() < 0.4:
        return None, seconds
    nth = int(10 ** random.uniform(0, fate.calls))
    return Point(random.choice(fate.points), random.random() < 0.5, nth), fate.seconds[1]


# The end ----------------------------------------------------------------------------------------------------


async def settled(site: Site) -> dict[str, Any]:
    """Wait until nothing is under way. What every budget counts, by tenant and metric; what is still held.

    Raises TimeoutError saying what there still is.
    """
    deadline = time.monotonic() + SETTLE_S
    left = "everything"
    async with (
        redis.asyncio.Redis.from_url(site.redis.url) as journal,
        httpx.AsyncClient(base_url=site.url, timeout=10, trust_env=False) as client,
    ):
        while True:
            try:
                limits = {
                    caller.tenant_id: await _limits(client, caller.admin_key) for caller in site.callers
                }
                held = {one: {m: h for m, (_, h) in found.items() if h} for one, found in limits.items()}
                held = {one: metrics for one, metrics in held.items() if metrics}
                waiting = {
                    "journal": await journal.xlen(JOURNAL_STREAM),
                    "spool": (site.state_dir / SPOOL).stat().st_size,
                    "in flight": _num_in_flight(site),
                }
                left = f"held: {held}, waiting: {waiting}"
                if not held and not any(waiting.values()):
                    used = {one: {m: u for m, (u, _) in found.items()} for one, found in limits.items()}
                    return {"used": used, "dead_letters": await journal.xlen(DEAD_LETTERS)}
            except (httpx.HTTPError, KeyError, RedisError, OSError) as error:
                left = repr(error)
            if time.monotonic() > deadline:
                raise TimeoutError(left)
            await asyncio.sleep(0.3)


async def _limits(client: httpx.AsyncClient, admin_key: str) -> dict[str, tuple[int, int]]:
    """(used, held) of each metric."""
    answer = await client.get(
        "/v1/organization/limits", headers={"authorization": f"Bearer {admin_key}"}, params={"limit": 100}
    )
    found = answer.json()["data"]
    return {one["metric"]: (one["used"] or 0, one["held"] or 0) for one in found}


def _num_in_flight(site: Site) -> int:
    return len(recover_table(site.state_dir / TABLE).rows)


# The run ----------------------------------------------------------------------------------------------------


async def run(folder: Path, kills: int, seed: int) -> tuple[dict[str, Any], Verdict]:
    """Everything, from the first start to the verdict. `folder`: an empty one with a short path."""
    began = time.monotonic()
    seen = folder / "seen"
    (folder / "witnesses").mkdir()
    seen.touch()
    async with open_site(folder) as site:
        load = await _start_load(site, seed, seen)
        killing = Killing(site, seed, kills, seen)
        try:
            await killing.run()
            killed_for = time.monotonic() - began
            load.send_signal(signal.SIGTERM)
            await asyncio.wait_for(load.wait(), 120)
        finally:
            if load.returncode is None:
                load.kill()
                await load.wait()
        books = await settled(site)
        verdict = audit(site.postgres.url, site.witnesses, seen)
        off = budgets_off(site.postgres.url, books["used"])
        verdict.differences += await reconciled(site.postgres.url, site.redis.url, site.engine_endpoint)
        verdict.differences += [f"ended by itself: {one}" for one in killing.own_ends]
        if books["dead_letters"]:
            verdict.differences.append(f"{books['dead_letters']} dead letters")
        verdict.differences += await _stop(killing.running)
    figures = {
        "seed": seed,
        "wanted": kills,
        "kills": killing.kills.total(),
        "kills_by_kind": dict(sorted(killing.kills.items())),
        "seconds_of_killing": round(killed_for, 1),
        "kills_at_points": killing.points.total(),
        "points": dict(sorted(killing.points.items())),
        "workers_that_waited_for_postgres": killing.num_waits,
        **verdict.figures(),
        "held_at_the_end": 0,
        "budget_tokens_off_the_ledger": off,
    }
    return figures, verdict


async def _start_load(site: Site, seed: int, seen: Path) -> asyncio.subprocess.Process:
    code = f"from benchmarks.chaos_load import main; main({site.url!r}, {str(seed)!r}, {str(seen)!r})"
    with (site.folder / "load.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log
        )
    assert process.stdin is not None
    process.stdin.write(told(site.callers))
    process.stdin.close()
    return process


async def _stop(running: dict[str, Process]) -> list[str]:
    """In good order; who did not end well."""
    wrong = []
    for name in ("api-1", "api-2", "engine", "worker-1", "worker-2"):
        process = running[name]
        if not process.ended.done():
            os.kill(process.pid, signal.SIGTERM)
        try:
            status = await asyncio.wait_for(asyncio.shield(process.ended), 40)
        except TimeoutError:
            process.kill()
            status = await process.ended
        if status:
            wrong.append(f"{name} stopped with status {status}")
    return wrong


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", action="store_true", help="keep the data directory and say where it is")
    options = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="rs-chaos-"))
    clean = False
    try:
        figures, verdict = asyncio.run(run(folder, options.kills, options.seed))
        clean = verdict.is_clean()
    finally:
        if options.keep or not clean:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return conclude(figures, options.out, clean=clean)


if __name__ == "__main__":
    sys.exit(main())
