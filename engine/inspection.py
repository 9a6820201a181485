"""Builds the view that operators see of an engine: the batch, the adapter slots, tenants in the batch and
waiting.

A view is built between two steps, has bounded size, and never contains prompts or answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from itertools import islice

from engine.gauges import (
    MAX_RESIDENT,
    DraftCounts,
    EngineStats,
    EngineView,
    RefusedAdapter,
    Share,
    SlotView,
    adapter_key,
)
from engine.history import Levels, StepHistory, Totals
from engine.lora.slots import SlotState, SlotTable
from engine.outputs import DraftCounter
from engine.protocol import PriorityClass
from engine.request import CLASS_ORDER, Request
from engine.scheduling.scheduler import Scheduler

MAX_SLOTS = 512
MAX_SHARES = 64
MAX_DRAFT_COUNTS = 256

_CLASSES = [str(priority) for priority in PriorityClass]
_Key = tuple[str, str | None, int]
"""Tenant, adapter digest, and the index of the class in `_CLASSES`."""
_NO_ROWS = [0, 0, 0]


def create_history(scheduler: Scheduler) -> StepHistory:
    """Returns an empty history that reads the scheduler's counters and gauges."""
    counters, slots, queue = scheduler.counters, scheduler.slot_allocator.slots, scheduler.queue

    def totals() -> Totals:
        return Totals(
            counters.completion_tokens,
            counters.prompt_tokens,
            counters.cached_tokens,
            counters.preemptions,
            sum(counters.shed.values()),
            slots.num_loads,
            slots.num_evictions,
        )

    def levels() -> Levels:
        return Levels(scheduler.pool.num_held, [queue.num_waiting(priority) for priority in PriorityClass])

    return StepHistory(totals, levels)


def resident_adapters(slots: SlotTable) -> bytes:
    """Returns the keys of adapters that are loaded or loading, as heartbeats have them: if there are too
    many, those in use first.
    """
    held = [slot for slot in slots.slots if slot.ref is not None]
    if len(held) > MAX_RESIDENT:
        held.sort(key=lambda slot: not slot.references)
    return b"".join(adapter_key(slot.ref.digest) for slot in held[:MAX_RESIDENT] if slot.ref is not None)


def build_view(
    scheduler: Scheduler,
    history: StepHistory,
    stats: EngineStats,
    memory: Mapping[str, int],
    slot_bytes: Sequence[int],
    *,
    taken_at: float,
    started_at: float,
    refused_adapters: Sequence[RefusedAdapter] = (),
) -> EngineView:
    """Returns the view of the engine as of now.

    `slot_bytes`: what each slot's adapter takes, where the slot table does not bound it; may be empty.
    """
    now = scheduler.read_clock()
    running, waiting = scheduler.running, list(scheduler.queue)
    shares, num_shares = _shares(running, waiting, now)
    p50, p99 = history.percentiles(0.5, 0.99)
    return EngineView(
        stats=stats,
        taken_at=taken_at,
        started_at=started_at,
        max_batch_tokens=scheduler.limits.max_batch_tokens,
        block_size=scheduler.pool.block_size,
        blocks_cached=scheduler.pool.num_cached,
        prefill_tokens=history.last_prefill if running else [0] * len(CLASS_ORDER),
        decode_rows=history.last_decode if running else [0] * len(CLASS_ORDER),
        oldest_wait=_oldest_waits(waiting, now),
        step_p50=p50,
        step_p99=p99,
        seconds=history.seconds(),
        slots=_slots(scheduler, slot_bytes),
        shares=shares,
        num_shares=num_shares,
        memory=dict(memory),
        drafts=[
            DraftCounts(
                tenant, digest, one.drafted, one.accepted, one.steps, one.guessed, one.guessed_accepted
            )
            for (tenant, digest), one in islice(reversed(scheduler.counters.drafts.items()), MAX_DRAFT_COUNTS)
        ],
        refused_adapters=list(refused_adapters),
    )


def _oldest_waits(waiting: list[Request], now: float) -> list[float]:
    found = [0.0] * len(CLASS_ORDER)
    for request in waiting:
        order = request.rank[0]
        found[order] = max(found[order], now - request.waiting_since)
    return found


def _shares(running: list[Request], waiting: list[Request], now: float) -> tuple[list[Share], int]:
    """Returns the largest shares, and how many there are in all."""
    rows: dict[_Key, list[int]] = {}
    for request in running:
        digest = None if request.adapter is None else request.adapter.digest
        key = (request.tenant, digest, request.rank[0])
        sums = rows.get(key)
        if sums is None:
            sums = rows[key] = [0, 0, 0]
        sums[0] += 1
        sums[1] += request.total_len - request.computed_len > 1
        sums[2] += request.total_len
    waits: dict[_Key, tuple[int, float]] = {}
    for request in waiting:
        digest = None if request.adapter is None else request.adapter.digest
        key = (request.tenant, digest, request.rank[0])
        count, since = waits.get(key, (0, now))
        waits[key] = (count + 1, min(since, request.waiting_since))
    largest = nsmallest(
        MAX_SHARES,
        rows.keys() | waits.keys(),
        key=lambda key: (
            -rows.get(key, _NO_ROWS)[0],
            -waits.get(key, (0, now))[0],
            key[0],
            key[2],
            key[1] or "",
        ),
    )
    shares = []
    for key in largest:
        num_rows, num_prefill, num_tokens = rows.get(key, _NO_ROWS)
        count, since = waits.get(key, (0, now))
        tenant, digest, order = key
        shares.append(
            Share(tenant, digest, _CLASSES[order], num_rows, num_prefill, num_tokens, count, now - since)
        )
    return shares, len(rows.keys() | waits.keys())


def drafts_by_digest(scheduler: Scheduler) -> dict[str, DraftCounter]:
    """Returns what became of drafts on each adapter, of all tenants together."""
    found: dict[str, DraftCounter] = {}
    for (_, digest), one in scheduler.counters.drafts.items():
        total = found.setdefault(digest, DraftCounter())
        total.add(one.drafted - one.guessed, one.accepted - one.guessed_accepted, is_guessed=False)
        total.add(one.guessed, one.guessed_accepted, is_guessed=True)
        total.steps += one.steps
    return found


def _slots(scheduler: Scheduler, slot_bytes: Sequence[int]) -> list[SlotView]:
    slot_allocator = scheduler.slot_allocator
    table = slot_allocator.slots
    drafts = drafts_by_digest(scheduler)
    guesses, held = scheduler.counters.guesses, scheduler.draft_adapters.held
    found = [
        SlotView(
            slot=slot.index,
            digest=slot.ref.digest,
            rank=slot.ref.rank,
            num_bytes=slot.num_bytes or (slot_bytes[slot.index] if slot_bytes else 0),
            loading=slot.state is SlotState.LOADING,
            pinned=table.is_pinned(slot.ref.digest),
            closing=slot_allocator.is_closed(slot.index),
            rows=slot.references - held.count(slot.index),
            waiting=slot_allocator.num_waiting(slot.ref.digest),
            drafted_tokens=counter.drafted,
            accepted_tokens=counter.accepted,
            guessed_tokens=counter.guessed,
            guessed_accepted=counter.guessed_accepted,
            drafts_for_others=slot.ref.digest in guesses or slot.index in held,
        )
        for slot in table.slots
        if slot.ref is not None
        for counter in [guesses.get(slot.ref.digest) or drafts.get(slot.ref.digest) or DraftCounter()]
    ]
    found.sort(key=lambda view: (-view.rows, -view.waiting, view.slot))
    return found[:MAX_SLOTS]
