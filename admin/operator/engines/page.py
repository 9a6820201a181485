"""Gathers the live page of an engine from its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from adapters.name_cache import AdapterName, AdapterNameCache
from admin import formatting
from admin.badge import Badge
from admin.charts.live import LiveChart
from admin.operator.engines import charts as pictures
from admin.operator.engines.charts import Part, Rows, SlotMap
from admin.operator.engines.prompt_facts import prompt_facts
from admin.operator.engines.report import EngineReport, Engines
from engine.gauges import EngineStats, EngineView, Share, SlotView
from engine.protocol import PriorityClass

STATES = {
    "starting": Badge("Starting", "busy"),
    "serving": Badge("Serving", "good"),
    "draining": Badge("Draining", "warn"),
    "gone": Badge("Gone", "bad"),
}
SILENT_SECONDS = 4.0
"""After which a view is said to be old."""
MAX_SLOT_ROWS = 16
"""In the table; the picture has them all."""
MAX_SHARE_ROWS = 16
CLASSES = {"priority": "Priority", "default": "Default", "flex": "Flex"}


@dataclass(frozen=True)
class Tab:
    key: str
    state: Badge
    is_shown: bool


@dataclass(frozen=True)
class Tile:
    title: str
    value: str
    note: str


@dataclass(frozen=True)
class QueueRow:
    title: str
    tone: str
    running: int
    waiting: int
    oldest: str
    predicted: str
    preempted: int
    refused: int


@dataclass(frozen=True)
class Named:
    """An adapter, or Base model: whose, and where that leads."""

    text: str
    tenant: str
    tenant_id: str | None


@dataclass(frozen=True)
class SlotRow:
    slot: int
    named: Named
    state: Badge
    rank: int
    num_bytes: int | None
    rows: int
    waiting: int
    accepted: str
    """Share of its drafts."""
    is_pinned: bool


@dataclass(frozen=True)
class ShareRow:
    tenant: str
    tenant_id: str | None
    adapter: str
    title: str
    tone: str
    rows: int
    prefill_rows: int
    tokens: int
    waiting: int
    oldest: str


@dataclass(frozen=True)
class EngineDetail:
    """Of an engine that was seen at least once."""

    tiles: list[Tile]
    rows: Rows
    step: str
    """What the last step was made of, in words."""
    step_charts: list[LiveChart]
    queue: list[QueueRow]
    waiting: LiveChart
    blocks: list[Part]
    used_blocks: LiveChart
    hit_rate: str
    memory: list[Part]
    map: SlotMap
    slots: list[SlotRow]
    more_slots: int
    slots_note: str
    shares: list[ShareRow]
    more_shares: int
    facts: list[tuple[str, str]]


@dataclass(frozen=True)
class EnginePage:
    tabs: list[Tab]
    key: str
    state: Badge
    lead: str
    heed: str
    """What is to be known of how true the page is; empty when it is."""
    is_live: bool
    detail: EngineDetail | None
    announcement: str


class EnginePages:
    """Gathers the page."""

    def __init__(
        self, engines: Engines, names: AdapterNameCache, clock: Callable[[], float] = time.time
    ) -> None:
        self._engines = engines
        self._names = names
        self._clock = clock

    async def gather(self, key: str) -> EnginePage | None:
        """Of the engine `key`, or of the first where there is none such; None where there is no engine.
        Raises DatabaseUnavailable.
        """
        reports = await self._engines.look()
        if not reports:
            return None
        report = next((one for one in reports if one.key == key), reports[0])
        state = STATES[report.state]
        tabs = [Tab(one.key, STATES[one.state], one.key == report.key) for one in reports]
        detail = None if report.view is None else await self._show(report.view)
        now = self._clock()
        return EnginePage(
            tabs=tabs,
            key=report.key,
            state=state,
            lead=_lead(report),
            heed=_heed(report, now),
            is_live=report.state != "gone",
            detail=detail,
            announcement=f"{report.key}: {state.word}",
        )

    async def documents(self) -> list[dict[str, Any]]:
        """The same for programs: every report, with names where digests and ids have some."""
        found = []
        for report in await self._engines.look():
            document: dict[str, Any] = msgspec.to_builtins(report)
            if report.view is not None:
                adapters, tenants = await self._named(report.view)
                document["adapters"] = {
                    digest: msgspec.to_builtins(name) for digest, name in adapters.items()
                }
                document["tenants"] = tenants
                document["view"] = _keyed(report.view)
            found.append(document)
        return found

    async def _named(self, view: EngineView) -> tuple[Mapping[str, AdapterName], Mapping[str, str]]:
        digests = {slot.digest for slot in view.slots} | {one.digest for one in view.shares if one.digest}
        return await self._names.of(digests, {share.tenant for share in view.shares})

    async def _show(self, view: EngineView) -> EngineDetail:
        adapters, tenants = await self._named(view)
        stats = view.stats
        columns = pictures.columns_of(view)
        waiting = sum(stats.waiting.values())
        per_second = pictures.recent(columns, "completion_tokens")
        hit = pictures.hit_rate(view)
        gained = pictures.sums(view)
        tiles = [
            Tile("Batch size", f"{stats.running:,}", f"of {stats.rows_total:,} rows; {waiting:,} queued"),
            Tile("Generated", f"{formatting.compact(per_second)}/s", "tokens, last 10 s"),
            Tile(
                "Step time",
                pictures.milliseconds(view.step_p50),
                f"p99 {pictures.milliseconds(view.step_p99)}",
            ),
            Tile(
                "KV blocks in use",
                _share(stats.blocks_used, stats.blocks_total),
                f"of {stats.blocks_total:,}",
            ),
        ]
        return EngineDetail(
            tiles=tiles,
            rows=pictures.rows_of(view),
            step=_step(view),
            step_charts=pictures.step_charts(columns),
            queue=[_queue_row(view, order) for order in range(len(CLASSES))],
            waiting=pictures.queue_chart(columns),
            blocks=pictures.block_parts(view),
            used_blocks=pictures.blocks_chart(columns),
            hit_rate=formatting.NOTHING if hit is None else f"{100 * hit:.1f} %",
            memory=pictures.memory_parts(view),
            map=pictures.slot_map(view, lambda slot: _adapter(slot.digest, adapters).text),
            slots=[_slot_row(slot, adapters) for slot in view.slots[:MAX_SLOT_ROWS]],
            more_slots=max(0, len(view.slots) - MAX_SLOT_ROWS),
            slots_note=_slots_note(view, gained),
            shares=[_share_row(share, adapters, tenants) for share in view.shares[:MAX_SHARE_ROWS]],
            more_shares=max(0, view.num_shares - MAX_SHARE_ROWS),
            facts=_facts(view, gained),
        )


def _lead(report: EngineReport) -> str:
    info = report.info
    if info is None:
        return "Not reached yet."
    parts = [f"{info.base} on {info.device}"]
    if info.tensor_parallel > 1:
        parts.append(f"tensor parallel over {info.tensor_parallel}")
    if info.role == "prefill":
        parts.append("computes prompts for other engines")
    if info.quantization != "none":
        parts.append(info.quantization)
    if report.view is not None and report.view.stats.kv_dtype:
        parts.append(f"KV cache in {formatting.dtype(report.view.stats.kv_dtype)}")
    return ", ".join([*parts, f"context {info.context_length:,}"])


def _heed(report: EngineReport, now: float) -> str:
    if report.state == "gone":
        seen = " Showing its last known state." if report.view is not None else ""
        return f"This engine has been unreachable since {_clock(report.since)}.{seen}"
    if report.state == "starting":
        return "Loading the model. Requests are served once it's loaded."
    old = 0.0 if report.view is None else now - report.view.taken_at
    if old > SILENT_SECONDS:
        return f"No update for {old:.0f} s. The engine may be very busy."
    if report.state == "draining":
        return "Shutting down: finishing current requests and rejecting new ones."
    if report.view is not None and report.view.stats.prefill_refusals:
        return f"Long prompts are computed here: {report.view.stats.prefill_refusals[0]}."
    return ""


def _step(view: EngineView) -> str:
    rows, tokens = sum(view.decode_rows), sum(view.prefill_tokens)
    if not rows and not tokens:
        return "No requests running."
    return (
        f"Last step: {_many(rows, 'decode row', 'decode rows')} and "
        f"{_many(tokens, 'prefill token', 'prefill tokens')}, of at most {view.max_batch_tokens:,} tokens."
    )


def _queue_row(view: EngineView, order: int) -> QueueRow:
    name, title = [*CLASSES.items()][order]
    stats = view.stats
    waiting = stats.waiting.get(name, 0)
    return QueueRow(
        title=title,
        tone=pictures.TONES[order],
        running=stats.running_by_class.get(name, 0),
        waiting=waiting,
        oldest=pictures.seconds(view.oldest_wait[order]) if waiting else formatting.NOTHING,
        predicted=pictures.seconds(stats.predicted_wait.get(name, 0.0)),
        preempted=stats.preempted.get(name, 0),
        refused=stats.shed.get(name, 0),
    )


def _adapter(digest: str | None, adapters: Mapping[str, AdapterName]) -> Named:
    if digest is None:
        return Named("Base model", "", None)
    name = adapters.get(digest)
    if name is None:
        return Named(f"{digest[:12]}…", "", None)
    return Named(f"{name.adapter}@{name.version}", name.tenant, name.tenant_id)


def _slot_row(slot: SlotView, adapters: Mapping[str, AdapterName]) -> SlotRow:
    return SlotRow(
        slot=slot.slot,
        named=_adapter(slot.digest, adapters),
        state=pictures.slot_state(slot),
        rank=slot.rank,
        num_bytes=slot.num_bytes or None,
        rows=slot.rows,
        waiting=slot.waiting,
        accepted=_share(slot.accepted_tokens, slot.drafted_tokens),
        is_pinned=slot.pinned,
    )


def _share_row(share: Share, adapters: Mapping[str, AdapterName], tenants: Mapping[str, str]) -> ShareRow:
    order = [str(priority) for priority in PriorityClass].index(share.priority)
    name = tenants.get(share.tenant)
    return ShareRow(
        tenant=share.tenant if name is None else name,
        tenant_id=None if name is None else share.tenant,
        adapter=_adapter(share.digest, adapters).text,
        title=CLASSES[share.priority],
        tone=pictures.TONES[order],
        rows=share.rows,
        prefill_rows=share.prefill_rows,
        tokens=share.tokens,
        waiting=share.waiting,
        oldest=pictures.seconds(share.oldest_wait) if share.waiting else formatting.NOTHING,
    )


def _slots_note(view: EngineView, gained: Mapping[str, int]) -> str:
    stats = view.stats
    return (
        f"{stats.slots_resident:,} of {stats.slots_total:,} slots in use, {stats.slots_loading:,} "
        f"loading. Last five minutes: {_many(gained['adapter_loads'], 'load', 'loads')}, "
        f"{_many(gained['adapter_evictions'], 'eviction', 'evictions')}."
    )


def _facts(view: EngineView, gained: Mapping[str, int]) -> list[tuple[str, str]]:
    stats = view.stats
    started = datetime.fromtimestamp(view.started_at, UTC)
    per_load = stats.adapter_load_seconds / stats.adapter_loads if stats.adapter_loads else None
    load = formatting.NOTHING if not per_load else pictures.milliseconds(per_load)
    return [
        ("Serving since", formatting.clock(started)),
        ("Steps", f"{stats.steps:,}"),
        ("Device idle between steps", _share(stats.step_gap_seconds, _step_time(stats))),
        ("Drafted tokens accepted", _share(stats.accepted_tokens, stats.drafted_tokens)),
        ("Tokens gained per step with drafts", _gained(stats)),
        ("Preemptions", _with_recent(stats.preemptions, gained["preemptions"])),
        ("Rejected: predicted wait too long", _with_recent(sum(stats.shed.values()), gained["shed"])),
        ("Adapters loaded", _with_recent(stats.adapter_loads, gained["adapter_loads"])),
        ("Adapters evicted", _with_recent(stats.adapter_evictions, gained["adapter_evictions"])),
        ("Mean load time", load),
        ("Cancelled by clients", f"{stats.aborted:,}"),
        ("Engine errors", f"{stats.errors:,}"),
        ("Usage events waiting on disk", f"{stats.journal_spooled:,}"),
        *prompt_facts(stats),
    ]


def _gained(stats: EngineStats) -> str:
    """Returns the tokens that drafts added to a row's step, where there were some."""
    return f"{stats.accepted_tokens / stats.draft_steps:.2f}" if stats.draft_steps else formatting.NOTHING


def _step_time(stats: EngineStats) -> float:
    """Returns the seconds with work for the device: in steps, and in the gaps between them."""
    return stats.step_seconds + stats.step_gap_seconds


def _keyed(view: EngineView) -> dict[str, Any]:
    """What goes over the wire as lists has names here."""
    document: dict[str, Any] = msgspec.to_builtins(view)
    for name in ("seconds", "slots", "shares"):
        document[name] = [msgspec.structs.asdict(one) for one in getattr(view, name)]
    return document


def _with_recent(total: int, recent: int) -> str:
    return f"{total:,}" if not recent else f"{total:,} ({recent:,} in the last five minutes)"


def _many(number: int, one: str, more: str) -> str:
    return f"{number:,} {one if number == 1 else more}"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else formatting.NOTHING


def _clock(at: float) -> str:
    return formatting.clock(datetime.fromtimestamp(at, UTC))
