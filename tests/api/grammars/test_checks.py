"""Grammars are checked in processes that end at their limits, whatever is sent and whatever dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api.errors import GrammarChecksBusy
from api.grammars.checks import MAX_WAITING, TENANT_CONCURRENCY, GrammarChecks
from api.grammars.verdict_cache import (
    MAX_VERDICTS,
    MAX_VERDICTS_BY_TENANT,
    PASSING_S,
    VerdictCache,
)
from benchmarks.hostile_grammars import HOSTILE, words
from engine.protocol import Grammar
from telemetry.metrics import ServingMetrics
from tests.support.text_base import write_base
from tests.support.waiting import until
from tokenization.grammars.confinement import MEMORY
from tokenization.grammars.errors import GrammarRefused, GrammarsUnavailable, GrammarsUnsupported
from tokenization.grammars.messages import Check

BASE = Path(__file__).resolve().parents[3] / "examples" / "sapling" / "weights" / "base"
MB = 1 << 20


@pytest.fixture
async def checks() -> AsyncIterator[GrammarChecks]:
    checks = GrammarChecks(BASE, ServingMetrics())
    await checks.start()
    yield checks
    await checks.close()


def schema(document: Any) -> Check:
    return Check(Grammar("json_schema", json.dumps(document)), False)


def fresh(number: int) -> Check:
    """A schema that differs from all others."""
    return schema({"type": "object", "properties": {f"p{number}": {"type": "string"}}})


def count(checks: GrammarChecks, result: str) -> float:
    return (
        checks._metrics.registry.get_sample_value("rootstock_grammar_checks_total", {"result": result}) or 0
    )


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_grammars_cost_little(checks: GrammarChecks, name: str) -> None:
    """Each ends within the limit, in this process and in the one that checks it; the next check is served."""
    before, peak = address_space(checks.pid), Peak(checks)
    own = resident(os.getpid())
    began = time.monotonic()
    with contextlib.suppress(GrammarRefused):
        await peak.during(checks.check("mallory", Check(HOSTILE[name], False)))
    assert time.monotonic() - began < 3, "the limit is 1 s; the machine may be busy"
    assert peak.bytes <= before + MEMORY + MB
    assert resident(os.getpid()) - own < 64 * MB
    await checks.check("mallory", fresh(1))


class Peak:
    """The largest address space of a process that checks."""

    def __init__(self, checks: GrammarChecks) -> None:
        self._checks = checks
        self.bytes = 0

    async def during(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        while not task.done():
            for pid in children(self._checks.pid):
                self.bytes = max(self.bytes, address_space(pid))
            await asyncio.sleep(0.002)
        await task


def address_space(pid: int | None) -> int:
    return _memory(pid, 0)


def resident(pid: int) -> int:
    return _memory(pid, 1)


def _memory(pid: int | None, column: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[column]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0


def children(pid: int | None) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


async def test_what_takes_too_long_is_ended_and_forgotten_later(checks: GrammarChecks) -> None:
    with pytest.raises(GrammarRefused, match="longer than the limit of 1 s") as refused:
        await checks.check("mallory", Check(HOSTILE["patterns"], False))
    assert not refused.value.is_final
    assert not children(checks.pid)
    assert count(checks, "over_limit") == 1


@pytest.mark.quiet  # on a busy machine the limit of time comes first
async def test_what_takes_too_much_memory_is_ended(checks: GrammarChecks) -> None:
    with pytest.raises(GrammarRefused, match="more memory than the limit of 64 MB"):
        await checks.check("mallory", Check(Grammar("lark", "start: " + words(60_000)), False))


async def test_a_check_runs_once_for_each_tenant(checks: GrammarChecks) -> None:
    bad = schema({"type": "object", "properties": {"a": {"uniqueItems": True}}})
    for tenant in ("acme", "globex"):
        await asyncio.gather(*(checks.check(tenant, fresh(1)) for _ in range(5)))
        await checks.check(tenant, fresh(1))
        for _ in range(2):
            with pytest.raises(GrammarRefused, match="'uniqueItems' is not supported") as refused:
                await checks.check(tenant, bad)
            assert refused.value.path == ("properties", "a", "uniqueItems")
    assert (count(checks, "accepted"), count(checks, "refused"), count(checks, "cached")) == (2, 2, 4)


async def test_a_strict_check_is_another_one(checks: GrammarChecks) -> None:
    order = fresh(1)
    await checks.check("acme", order)
    with pytest.raises(GrammarRefused, match="additionalProperties"):
        await checks.check("acme", Check(order.grammar, True))


async def test_one_tenant_does_not_hold_up_another(checks: GrammarChecks) -> None:
    slow = [
        asyncio.create_task(
            checks.check("mallory", Check(Grammar("lark", f"start: {words(50_000 + n)}"), False))
        )
        for n in range(MAX_WAITING)
    ]
    await asyncio.sleep(0.2)
    assert len(children(checks.pid)) <= TENANT_CONCURRENCY
    with pytest.raises(GrammarChecksBusy):
        await checks.check("mallory", fresh(0))
    for number in range(20):
        await checks.check("acme", fresh(number))
    assert sum(not task.done() for task in slow) > MAX_WAITING / 2
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


async def test_clients_that_hang_up_make_no_room(checks: GrammarChecks) -> None:
    for number in range(MAX_WAITING):
        order = Check(Grammar("lark", f"start: {words(50_000 + number)}"), False)
        waiting = asyncio.create_task(checks.check("mallory", order))
        await asyncio.sleep(0)
        waiting.cancel()
    with pytest.raises(GrammarChecksBusy):
        await checks.check("mallory", fresh(0))


CHECKS_BETWEEN_KILLS = 3


async def test_checks_outlive_killed_processes(checks: GrammarChecks) -> None:
    """kill -9 of children and of their fork server while checks run: honest grammars pass all the same."""
    draw = random.Random(4)
    num_killed = 0
    is_over = False

    async def kill() -> None:
        nonlocal num_killed
        checked = 0
        while not is_over:
            await asyncio.sleep(draw.uniform(0.05, 0.15))
            if len(results) < checked + CHECKS_BETWEEN_KILLS:  # on a busy machine checks take longer
                continue
            checked = len(results)
            victims = children(checks.pid)
            victim = checks.pid if draw.random() < 0.2 or not victims else draw.choice(victims)
            if victim is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    num_killed += 1

    results: list[str] = []
    killing = asyncio.create_task(kill())
    while len(results) < 60 or num_killed < 10:
        try:
            await checks.check("acme", fresh(len(results)))
            results.append("accepted")
        except GrammarsUnavailable:
            results.append("unavailable")
    is_over = True
    await killing
    assert results.count("accepted") >= 5 * len(results) / 6, results
    await checks.check("acme", fresh(len(results)))


async def test_children_end_with_their_fork_server(checks: GrammarChecks) -> None:
    order = Check(Grammar("lark", f"start: {words(50_000)}"), False)
    task = asyncio.create_task(checks.check("mallory", order))
    await asyncio.sleep(0.2)
    running = children(checks.pid)
    assert running
    await checks.close()
    await asyncio.gather(task, return_exceptions=True)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in running), 5, "the children are gone")


async def test_a_base_without_an_end_of_sequence_has_no_grammars(tmp_path: Path) -> None:
    checks = GrammarChecks(write_base(tmp_path / "base"), ServingMetrics())
    await checks.start()
    with pytest.raises(GrammarsUnsupported, match="end-of-sequence"):
        await checks.check("acme", fresh(1))
    assert not checks.are_supported
    await checks.close()


def test_the_cache_is_bounded_for_each_tenant_and_for_all() -> None:
    cache = VerdictCache()
    cache.put(("acme", b"kept"), None)
    for number in range(2 * MAX_VERDICTS_BY_TENANT):
        cache.put(("mallory", b"%d" % number), None)
    assert len(cache) == MAX_VERDICTS_BY_TENANT + 1
    assert cache.get(("acme", b"kept")) is not None
    assert cache.get(("mallory", b"0")) is None
    for number in range(MAX_VERDICTS):
        cache.get(("acme", b"kept"))
        cache.put((f"t{number}", b"one"), None)
    assert len(cache) == MAX_VERDICTS
    assert cache.get(("acme", b"kept")) is not None
    assert cache.get(("mallory", b"1023")) is None


def test_refusals_that_a_busy_machine_may_cause_are_forgotten() -> None:
    now = 0.0
    cache = VerdictCache(lambda: now)
    cache.put(("acme", b"slow"), GrammarRefused((), "too slow", is_final=False))
    cache.put(("acme", b"wrong"), GrammarRefused((), "wrong"))
    now = PASSING_S + 1
    assert cache.get(("acme", b"slow")) is None
    assert cache.get(("acme", b"wrong")) is not None
    cache.put(("acme", b"slow"), None)
    assert len(cache) == 2
