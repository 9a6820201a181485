"""Collects reports of all engines in Redis while an operator has the engines page open, or a tenant opens an
adapter's page.

API processes may know different engines, but a page shows all. So a process that serves the page sets a key
in Redis; while it is fresh, every process inspects its engines once a second (one of several on the same
engine) and stores the reports in Redis, where pages read them. Without viewers, engines are not inspected.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import msgspec
import redis.asyncio
import structlog
from redis.exceptions import RedisError

from admin.operator.engines.report import EngineReport, EngineState
from engine.client import EngineClient
from telemetry.tasks import cancel, gather_all

log = structlog.get_logger(__name__)

REPORTS = "rootstock:engines"
"""Redis hash: each engine's latest report, by the engine's key."""
LOOKED = "rootstock:engines:looked"
"""Redis key: since when the page has been viewed; expires without viewers."""
TURN = "rootstock:engines:turn:{}"
"""Redis key: lock of the process that inspects an engine in this second."""
INTERVAL = 1.0
_TURN_MS = 800
_LOOKING_SECONDS = 5
PATIENCE = 2.0
"""Seconds that an engine has to answer, which it does between two steps."""
FRESH = 3.5
"""Seconds for which a report counts as current."""
FORGOTTEN = 24 * 3600.0
"""Seconds without a report after which an engine is removed."""

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(EngineReport)


class EngineWatch:
    """Reports this process's engines, and reads all engines' reports."""

    def __init__(
        self,
        engines: Callable[[], Sequence[EngineClient]],
        cache: redis.asyncio.Redis,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives Unix seconds."""
        self._engines = engines
        self._cache = cache
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._keep_reporting(), name="engine watch")

    async def close(self) -> None:
        task, self._task = self._task, None
        await cancel(task)

    async def look(self) -> list[EngineReport]:
        """Returns all engines' reports, and keeps them coming. Raises RedisError."""
        began, is_first = await self._register_viewer()
        if is_first:
            await self.report()  # the first view has a report without waiting for the next interval
        reports = await self._read()
        now = self._clock()
        for key, report in list(reports.items()):
            if now - report.reported_at > FORGOTTEN:
                del reports[key]
                await self._cache.hdel(REPORTS, key)
            elif now - max(report.reported_at, began) > FRESH:
                # No process reports it, although the page has been viewed long enough.
                reports[key] = msgspec.structs.replace(report, state="gone", since=_end_of(report))
        return [reports[key] for key in sorted(reports)]

    async def _register_viewer(self) -> tuple[float, bool]:
        """Returns since when the page has been viewed, and whether this is the first view."""
        now = self._clock()
        async with self._cache.pipeline(transaction=False) as pipe:
            pipe.set(LOOKED, repr(now), nx=True, ex=_LOOKING_SECONDS)
            pipe.expire(LOOKED, _LOOKING_SECONDS)
            pipe.get(LOOKED)
            is_first, _, began = await pipe.execute()
        return (now if began is None else float(began)), bool(is_first)

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                if await self._cache.exists(LOOKED):
                    await self.report()
            except RedisError as error:
                log.warning("could not report the engines", error=str(error))

    async def report(self) -> None:
        """Stores a report of each of this process's engines."""
        await gather_all(*(self._report(engine) for engine in self._engines()))

    async def _report(self, engine: EngineClient) -> None:
        """Stores a report of an engine, unless another process does or has a better view."""
        key = engine.endpoint if engine.info is None else engine.info.engine_id
        was_ready = engine.ready
        if was_ready and not await self._cache.set(TURN.format(key), 1, nx=True, px=_TURN_MS):
            return
        view = await engine.inspect(PATIENCE)
        now = self._clock()
        before = (await self._read()).get(key)
        state = _state_of(engine)
        if state in ("starting", "gone") and before is not None:
            others_see_it = before.state in ("serving", "draining") and now - before.reported_at < FRESH
            if others_see_it and not was_ready:
                return
        since = before.since if before is not None and before.state == state else now
        report = EngineReport(
            key=key,
            state=state,
            reported_at=now,
            since=since,
            info=engine.info,
            view=view or (None if before is None else before.view),
        )
        await self._cache.hset(REPORTS, key, _encode(report))
        if key != engine.endpoint:
            await self._cache.hdel(REPORTS, engine.endpoint)

    async def _read(self) -> dict[str, EngineReport]:
        found = {}
        kept: dict[bytes, bytes] = await self._cache.hgetall(REPORTS)  # type: ignore[assignment]
        for key, value in kept.items():
            # A later release may write reports that this one cannot decode.
            with contextlib.suppress(msgspec.DecodeError):
                found[key.decode()] = _decoder.decode(value)
        return found


def _state_of(engine: EngineClient) -> EngineState:
    if engine.ready:
        return "draining" if engine.stats is not None and engine.stats.draining else "serving"
    return "starting" if engine.is_starting else "gone"


def _end_of(report: EngineReport) -> float:
    return report.since if report.state == "gone" else report.reported_at
