"""Upgrades a running service from the last release to this one and back, process by process, under load.

    python -m benchmarks.upgrade --upgrades 20 --out benchmarks/results/F.json

Two engines, two API processes behind nginx and a worker run apart (`benchmarks.upgrade_site`), at first all
of the older release. For each upgrade the newer one migrates, then replaces worker, engines and API processes
one at a time; then the older one replaces them, in the opposite order. Clients send requests all the time,
without retries. The exit status is 0 when no request failed, the ledger has what the clients received, once,
and the service's books agree.

`--from` names the older release: a commit, or the Python interpreter of an environment in which it is
installed; by default, the commit that set the present version in `pyproject.toml`.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.releases import Release, UnknownRelease, chosen, head
from benchmarks.report import conclude
from benchmarks.upgrade_counts import compared, is_clean
from benchmarks.upgrade_site import APIS, ENGINES, WORKERS, Site, SiteFailed, nginx_program, open_site
from benchmarks.upgrade_traffic import Load, Traffic

ORDER = (*WORKERS, *ENGINES, *APIS)
"""Of an upgrade, as docs/upgrading.md has it; back in the opposite order."""
ADAPTERS = ("pirate", "reverse-words", "to-json")


class Upgrades:
    """Replaces the processes of a site that serves, and says how it goes."""

    def __init__(self, site: Site, older: Release, newer: Release, traffic: Traffic) -> None:
        self._site, self._older, self._newer, self._traffic = site, older, newer, traffic
        self.seconds: dict[str, list[float]] = defaultdict(list)
        """By kind of process, how long each replacement took."""

    async def upgrade(self, number: int, order: Sequence[str] = ORDER) -> None:
        """Migrates and replaces each process by the newer release's."""
        self._traffic.during = f"upgrade {number}, migration"
        await asyncio.to_thread(self._site.migrate, self._newer)
        await self._replace(self._newer, f"upgrade {number}", order)

    async def go_back(self, number: int, order: Sequence[str] = ORDER) -> None:
        """Replaces each process by the older release's. The schema stays."""
        await self._replace(self._older, f"rollback {number}", order[::-1])

    async def _replace(self, release: Release, what: str, order: Sequence[str]) -> None:
        for name in order:
            self._traffic.during = f"{what}, {name}"
            seconds = await self._site.replace(release, name)
            self.seconds[name.partition("-")[0]].append(seconds)
            count, failed = len(self._traffic.answers), self._traffic.num_failed
            print(
                f"{what}: {name} is {release.name} after {seconds:.1f} s; {count} requests, {failed} failed",
                flush=True,
            )


async def run(
    folder: Path,
    older: Release,
    newer: Release,
    *,
    nginx: Sequence[str],
    upgrades: int,
    load: Load | None = None,
    adapters: Sequence[str] = ADAPTERS,
    order: Sequence[str] = ORDER,
    seed: int = 1,
    seconds: float = 36_000.0,
    reconcile: bool = True,
) -> dict[str, Any]:
    """Returns the figures of `upgrades` upgrades, each with its way back; no upgrade begins after `seconds`.

    Args:
        folder: an empty one with a short path.
        nginx: the command that runs it, without options.
        order: the processes that are replaced, in the order of an upgrade; the others stay as they are.
        reconcile: whether the service compares its books at the end.

    Raises SiteFailed when a process does not serve.
    """
    async with open_site(folder, nginx) as site:
        await site.start(older, *ENGINES)
        key, models = site.set_up(older, adapters)
        await site.start(older, *APIS, *WORKERS)
        await site.start_front()
        traffic = Traffic(f"{site.url}/v1", key, models, load or Load(), seed)
        doing, done, until = Upgrades(site, older, newer, traffic), 0, time.monotonic() + seconds
        traffic.start()
        site.has_traffic = True
        try:
            while done < upgrades and time.monotonic() < until:
                await doing.upgrade(done + 1, order)
                await doing.go_back(done + 1, order)
                done += 1
        finally:
            answers = await traffic.stop()
        ledger = await site.settled({answer.id for answer in answers if answer.id})
        books = await asyncio.to_thread(site.reconcile, older) if reconcile else []
        return {
            "upgrades": done,
            **compared(answers, ledger),
            "older": older.name,
            "newer": newer.name,
            "replaced": sum(map(len, doing.seconds.values())),
            "seconds": {kind: round(median(taken), 1) for kind, taken in doing.seconds.items()},
            "problems": [*site.problems, *books],
        }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.upgrade", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--from", dest="older", default="", help="the older release: a commit, or a python")
    parser.add_argument("--upgrades", type=int, default=20, help="each with its way back")
    parser.add_argument("--seconds", type=float, default=36_000.0, help="no upgrade begins later than that")
    parser.add_argument("--clients", type=int, default=4, help="that send requests at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nginx", help="nginx's path. Default: the one on PATH")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="rs-up-"))
    (folder / "site").mkdir()
    clean = False
    try:
        figures = asyncio.run(
            run(
                folder / "site",
                chosen(options.older, folder / "older"),
                head(),
                nginx=[nginx_program(options.nginx)],
                upgrades=options.upgrades,
                load=Load(options.clients),
                seed=options.seed,
                seconds=options.seconds,
            )
        )
        clean = is_clean(figures) and not figures["problems"]
    except (SiteFailed, UnknownRelease) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if clean:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"kept: {folder}", file=sys.stderr)
    return conclude(figures, options.out, clean=clean)


if __name__ == "__main__":
    sys.exit(main())
