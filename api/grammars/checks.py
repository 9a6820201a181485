"""Has grammars checked in processes of their own, a bounded number of them at once for each tenant."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import time
from pathlib import Path

import msgspec
import structlog

from adapters.inspection.owner_slots import OwnerSlots
from api.errors import GrammarChecksBusy
from api.grammars.verdict_cache import TenantDigest, VerdictCache
from engine.protocol import Grammar
from telemetry.metrics import ServingMetrics
from tokenization.grammars.errors import GrammarRefused, GrammarsUnavailable, GrammarsUnsupported
from tokenization.grammars.messages import Accepted, Check, Refused
from tokenization.grammars.server_link import Outcome, ServerLink

log = structlog.get_logger(__name__)

CONCURRENCY = 4
"""Checks at once; more wait."""
TENANT_CONCURRENCY = 2
"""Of one tenant; its others wait behind these, not in front of other tenants'."""
MAX_WAITING = 16
"""Checks of one tenant that run or wait; more are refused for the moment."""
_ATTEMPTS = 3
_TOO_SLOW = {-signal.SIGALRM, -signal.SIGXCPU}
_NOT_ITS_FAULT = {None, -signal.SIGKILL, -signal.SIGTERM}


class GrammarChecks:
    """Start it with the process, close it at its end; it restarts its fork server when that was killed.

    Args:
        base_dir: the base model's directory, for its tokenizer.
    """

    def __init__(self, base_dir: Path, metrics: ServingMetrics) -> None:
        self._base_dir = base_dir.resolve()
        self._metrics = metrics
        self._slots = OwnerSlots(CONCURRENCY, TENANT_CONCURRENCY)
        self._cache = VerdictCache()
        self._running: dict[TenantDigest, asyncio.Task[int]] = {}
        self._num_waiting: dict[str, int] = {}
        self._starting = asyncio.Lock()
        self._link: ServerLink | None = None
        self._unsupported: GrammarsUnsupported | None = None

    async def start(self) -> None:
        """Starts the fork server. If it cannot start now, each check tries again."""
        try:
            await self._living()
        except GrammarsUnavailable as error:
            log.error("grammars cannot be checked: the fork server does not start", reason=str(error))
        except GrammarsUnsupported as error:
            log.warning("structured outputs are not supported", reason=str(error))

    async def close(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        async with self._starting:
            if self._link is not None:
                await self._link.close()
                self._link = None

    @property
    def pid(self) -> int | None:
        """Returns the fork server's process id."""
        return self._link.pid if self._link is not None and self._link.is_alive else None

    @property
    def are_supported(self) -> bool:
        """Whether grammars can be followed with the base's tokenizer, as far as is known."""
        return self._unsupported is None

    async def check(self, tenant: str, order: Check) -> Grammar:
        """Returns the grammar, with the memory that it takes, if the engine can hold requests to it.

        Raises GrammarRefused; GrammarChecksBusy; GrammarsUnavailable, GrammarsUnsupported.
        """
        grammar = order.grammar
        digest = hashlib.sha256(f"{grammar.kind} {order.strict} {grammar.source}".encode(errors="replace"))
        key = tenant, digest.digest()
        verdict = self._cache.get(key)
        if verdict is None:
            compiled_bytes = await asyncio.shield(self._task(key, order))
        else:
            self._metrics.grammar_checked("cached")
            if verdict.refused is not None:
                raise GrammarRefused(verdict.refused.path, verdict.refused.reason)
            compiled_bytes = verdict.compiled_bytes
        return msgspec.structs.replace(grammar, compiled_bytes=compiled_bytes)

    def _task(self, key: TenantDigest, order: Check) -> asyncio.Task[int]:
        """Returns the check of a grammar: one for all requests that wait for it. It goes on without them, so
        that a client that hangs up makes no room for more.
        """
        task = self._running.get(key)
        if task is None:
            num_waiting = self._num_waiting.get(key[0], 0)
            if num_waiting >= MAX_WAITING:
                self._metrics.grammar_checked("busy")
                raise GrammarChecksBusy(
                    f"{num_waiting} other grammars of yours are being checked; retry in 1 s."
                )
            self._num_waiting[key[0]] = num_waiting + 1
            task = self._running[key] = asyncio.create_task(self._run(key, order))
            task.add_done_callback(lambda done: self._end(key, done))
        return task

    def _end(self, key: TenantDigest, task: asyncio.Task[int]) -> None:
        del self._running[key]
        self._num_waiting[key[0]] -= 1
        if not self._num_waiting[key[0]]:
            del self._num_waiting[key[0]]
        if not task.cancelled():
            task.exception()  # raised in the requests, if any of them still waits

    async def _run(self, key: TenantDigest, order: Check) -> int:
        async with self._slots.of(key[0]):
            began = time.monotonic()
            try:
                compiled_bytes = await self._verdict(order)
            except GrammarRefused as refused:
                self._cache.put(key, refused)
                self._metrics.grammar_checked(
                    "refused" if refused.is_final else "over_limit", time.monotonic() - began
                )
                raise
            except GrammarsUnavailable:
                self._metrics.grammar_checked("failed")
                raise
            self._cache.put(key, None, compiled_bytes)
            self._metrics.grammar_checked("accepted", time.monotonic() - began)
            return compiled_bytes

    async def _verdict(self, order: Check) -> int:
        """Returns the memory that the grammar takes compiled."""
        for _ in range(_ATTEMPTS):
            link = await self._living()
            outcome = await link.check(order)
            answer = outcome.answer
            if isinstance(answer, Accepted):
                return answer.compiled_bytes
            if isinstance(answer, Refused):
                raise GrammarRefused(answer.path, answer.reason, is_final=answer.is_final)
            if outcome.status not in _NOT_ITS_FAULT:
                raise _cause(outcome)
            if outcome.status is None:
                await link.close()
        raise GrammarsUnavailable("the processes that check grammars are ended from outside")

    async def _living(self) -> ServerLink:
        if self._unsupported is not None:
            raise GrammarsUnsupported(*self._unsupported.args)
        async with self._starting:
            if self._link is None or not self._link.is_alive:
                if self._link is not None:
                    log.warning("grammars.restarted", pid=self._link.pid)
                    await self._link.close()
                    self._link = None
                try:
                    self._link = await ServerLink.start(self._base_dir)
                except GrammarsUnsupported as error:
                    self._unsupported = error
                    raise
            return self._link


def _cause(outcome: Outcome) -> GrammarRefused:
    """Returns why a grammar is refused whose process ended without an answer."""
    if outcome.status in _TOO_SLOW:
        return GrammarRefused((), "checking it takes longer than the limit of 1 s", is_final=False)
    if outcome.status == -signal.SIGABRT:
        return GrammarRefused((), "checking it takes more memory than the limit of 64 MB", is_final=False)
    return GrammarRefused((), "it could not be compiled", is_final=False)
