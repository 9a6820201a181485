"""Lays out the charts of an engine: its batch, the last minutes, KV blocks, memory and adapter slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from admin import formatting
from admin.badge import Badge
from admin.charts import live
from admin.charts.live import Layer, LiveChart
from engine.gauges import EngineView, SlotView, StepSecond

TONES = ("output", "input", "rest")
"""Of the classes, in their order; the sheet of charts knows them."""
_TITLES = ("Priority", "Default", "Flex")
MINUTES = 5
COLUMN_SECONDS = 2
NUM_COLUMNS = MINUTES * 60 // COLUMN_SECONDS
RECENT_COLUMNS = 5

CELL = 10
"""Units of a cell with the gap around it; so many across is the width of the picture."""
_GAP = 2
ROWS_ACROSS = 32
MAX_CELLS = 512
SLOTS_ACROSS = 32

_MEMORY = {
    "weights": ("Weights", "c2"),
    "kv": ("KV cache", "input"),
    "adapters": ("Adapters", "c1"),
    "scratch": ("Scratch", "c4"),
    "rest": ("Free", "free"),
}


@dataclass(frozen=True, slots=True)
class Column:
    """Two seconds of an engine."""

    steps: int
    seconds: Sequence[StepSecond]

    def total(self, name: str) -> float:
        return float(sum(getattr(second, name) for second in self.seconds))

    def by_class(self, name: str, order: int) -> float:
        return float(sum(getattr(second, name)[order] for second in self.seconds))


@dataclass(frozen=True, slots=True)
class Part:
    """Of a bar that is a whole."""

    name: str
    tone: str
    value: str
    x: float
    width: float
    """Per cent, both."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows of one kind, as one path."""

    name: str
    tone: str
    is_prefill: bool
    count: int
    path: str


@dataclass(frozen=True, slots=True)
class Rows:
    """The batch: a cell for each row, those that are free last."""

    kinds: list[Cells]
    words: str
    width: int
    height: int
    rows_per_cell: int


@dataclass(frozen=True, slots=True)
class SlotCell:
    x: int
    y: int
    tone: str
    fill: int
    """How high it is filled, of `CELL` less the gap: its bytes beside those of the largest."""
    is_pinned: bool
    title: str

    @property
    def fill_y(self) -> int:
        return self.y + CELL - _GAP - self.fill


@dataclass(frozen=True, slots=True)
class SlotMap:
    """One cell for each slot, in order; idle slots are one path."""

    ground: str
    idle: str
    cells: list[SlotCell]
    pins: list[tuple[int, int]]
    width: int
    height: int


# The last minutes -------------------------------------------------------------------------------------------


def columns_of(view: EngineView) -> list[Column]:
    """Of the last minutes, the newest last."""
    end = int(view.taken_at) // COLUMN_SECONDS
    found: list[list[StepSecond]] = [[] for _ in range(NUM_COLUMNS)]
    for second in view.seconds:
        place = NUM_COLUMNS - (end - second.at // COLUMN_SECONDS)
        if 0 <= place < NUM_COLUMNS:
            found[place].append(second)
    return [Column(sum(second.steps for second in seconds), seconds) for seconds in found]


def step_charts(columns: Sequence[Column]) -> list[LiveChart]:
    decode = [
        Layer(
            title,
            tone,
            [one.by_class("decode_rows", order) / one.steps if one.steps else 0.0 for one in columns],
        )
        for order, (title, tone) in enumerate(zip(_TITLES, TONES, strict=True))
    ]
    prefill = [
        Layer(
            title,
            tone,
            [one.by_class("prefill_tokens", order) / one.steps if one.steps else 0.0 for one in columns],
        )
        for order, (title, tone) in enumerate(zip(_TITLES, TONES, strict=True))
    ]
    p50 = [
        sum(second.p50 * second.steps for second in one.seconds) / one.steps if one.steps else None
        for one in columns
    ]
    p99 = [max(second.p99 for second in one.seconds) if one.steps else None for one in columns]
    generated = [one.total("completion_tokens") / COLUMN_SECONDS for one in columns]
    prompts = [(one.total("prompt_tokens") - one.total("cached_tokens")) / COLUMN_SECONDS for one in columns]
    cached = [one.total("cached_tokens") / COLUMN_SECONDS for one in columns]
    return [
        live.stacked("Decode rows per step", decode, formatting.compact),
        live.stacked("Prefill tokens per step", prefill, formatting.compact),
        live.lines("Step time", [Layer("p99", "c1", p99), Layer("p50", "output", p50)], milliseconds, 0.001),
        live.lines(
            "Tokens per second",
            [
                Layer("generated", "output", generated),
                Layer("prompt", "input", prompts),
                Layer("cached", "cached", cached),
            ],
            formatting.compact,
            1.0,
        ),
    ]


def queue_chart(columns: Sequence[Column]) -> LiveChart:
    layers = [
        Layer(title, tone, [one.seconds[-1].waiting[order] if one.seconds else 0.0 for one in columns])
        for order, (title, tone) in enumerate(zip(_TITLES, TONES, strict=True))
    ]
    return live.stacked("Queued requests", layers, formatting.compact, least=4)


def blocks_chart(columns: Sequence[Column]) -> LiveChart:
    values = [float(one.seconds[-1].blocks_used) if one.seconds else 0.0 for one in columns]
    return live.stacked("Blocks in use", [Layer("In use", "input", values)], formatting.compact, least=4)


def recent(columns: Sequence[Column], name: str) -> float:
    """Per second, of the last ten seconds."""
    return sum(one.total(name) for one in columns[-RECENT_COLUMNS:]) / (RECENT_COLUMNS * COLUMN_SECONDS)


def hit_rate(view: EngineView) -> float | None:
    """Of the last minutes' prompt tokens, what the prefix cache had; None where there are none."""
    prompts = sum(second.prompt_tokens for second in view.seconds)
    return sum(second.cached_tokens for second in view.seconds) / prompts if prompts else None


def sums(view: EngineView) -> Mapping[str, int]:
    """Of the last minutes."""
    names = ("preemptions", "shed", "adapter_loads", "adapter_evictions")
    return {name: sum(getattr(second, name) for second in view.seconds) for name in names}


# Now --------------------------------------------------------------------------------------------------------


def rows_of(view: EngineView) -> Rows:
    """The batch as cells, by class, those that compute their prompt behind those that decode."""
    stats = view.stats
    total = max(stats.rows_total, stats.running, 1)
    per_cell = -(-total // MAX_CELLS)
    prefill = [0] * len(_TITLES)
    names = [title.lower() for title in _TITLES]
    for share in view.shares:
        prefill[names.index(share.priority)] += share.prefill_rows
    kinds, at = [], 0
    for order, title in enumerate(_TITLES):
        running = stats.running_by_class.get(names[order], 0)
        computing = min(prefill[order], running)
        for count, is_prefill in ((running - computing, False), (computing, True)):
            num_cells = -(-count // per_cell)
            kinds.append(Cells(title, TONES[order], is_prefill, count, _cells(at, num_cells)))
            at += num_cells
    num_cells = max(-(-total // per_cell), at)
    kinds.append(Cells("Free", "free", False, max(0, total - stats.running), _cells(at, num_cells - at)))
    told = [
        f"{kind.count} {kind.name.lower()}{' in prefill' if kind.is_prefill else ''}"
        for kind in kinds
        if kind.count
    ]
    height = -(-num_cells // ROWS_ACROSS) * CELL - _GAP
    return Rows(kinds, f"Rows of the batch: {', '.join(told)}.", ROWS_ACROSS * CELL - _GAP, height, per_cell)


def _cells(first: int, count: int) -> str:
    size = CELL - _GAP
    places = ((at % ROWS_ACROSS * CELL, at // ROWS_ACROSS * CELL) for at in range(first, first + count))
    return "".join(f"M{x} {y}h{size}v{size}h-{size}z" for x, y in places)


def block_parts(view: EngineView) -> list[Part]:
    stats = view.stats
    free = max(0, stats.blocks_total - stats.blocks_used - view.blocks_cached)
    return _parts(
        [
            ("In use", "output", stats.blocks_used),
            ("Cached (reusable)", "cached", view.blocks_cached),
            ("Empty", "free", free),
        ],
        formatting.count,
    )


def memory_parts(view: EngineView) -> list[Part]:
    """Empty where the engine has no memory to tell of."""
    known = [(*_MEMORY[name], num_bytes) for name, num_bytes in view.memory.items() if name in _MEMORY]
    known.sort(key=lambda one: list(_MEMORY.values()).index((one[0], one[1])))
    return _parts(known, lambda num_bytes: formatting.size(round(num_bytes)))


def _parts(wanted: Sequence[tuple[str, str, float]], say: Callable[[float], str]) -> list[Part]:
    total = sum(value for *_, value in wanted)
    found, x = [], 0.0
    for name, tone, value in wanted:
        width = 100 * value / total if total else 0.0
        found.append(Part(name, tone, say(value), round(x, 3), round(width, 3)))
        x += width
    return found


def slot_state(slot: SlotView) -> Badge:
    if slot.loading:
        return Badge("Loading", "busy")
    if slot.closing:
        return Badge("Evicting", "warn")
    return Badge("In use", "good") if slot.rows else Badge("Idle", "off")


_SLOT_TONES = {"Loading": "c4", "Evicting": "c1", "In use": "input"}


def slot_map(view: EngineView, name: Callable[[SlotView], str]) -> SlotMap:
    cells = _slot_cells(view, name)
    size, num_slots = CELL - _GAP, min(view.stats.slots_total, MAX_CELLS)
    idle = [cell for cell in cells if not cell.title]
    return SlotMap(
        ground=_cells(0, num_slots),
        idle="".join(f"M{cell.x} {cell.fill_y}h{size}v{cell.fill}h-{size}z" for cell in idle),
        cells=[cell for cell in cells if cell.title],
        pins=[(cell.x + size // 2, cell.y + size // 2) for cell in cells if cell.is_pinned],
        width=SLOTS_ACROSS * CELL - _GAP,
        height=max(1, -(-num_slots // SLOTS_ACROSS)) * CELL - _GAP,
    )


def _slot_cells(view: EngineView, name: Callable[[SlotView], str]) -> list[SlotCell]:
    """Returns the cells of filled slots; those in use have a title."""
    largest = max((slot.num_bytes or slot.rank for slot in view.slots), default=1)
    found = []
    for slot in sorted(view.slots, key=lambda slot: slot.slot):
        if slot.slot >= MAX_CELLS:
            break
        x, y = slot.slot % SLOTS_ACROSS * CELL, slot.slot // SLOTS_ACROSS * CELL
        state = slot_state(slot).word
        fill = max(2, round((CELL - _GAP) * (slot.num_bytes or slot.rank) / largest))
        title = "" if state == "Idle" else f"{name(slot)}, {state.lower()}, {slot.rows} rows"
        found.append(SlotCell(x, y, _SLOT_TONES.get(state, ""), fill, slot.pinned, title))
    return found


# Words ------------------------------------------------------------------------------------------------------


def milliseconds(value: float) -> str:
    """Of a step: two or three digits."""
    if value >= 9.995:
        return f"{value:.0f} s"
    if value >= 0.9995:
        return f"{value:.2f} s"
    if value >= 0.0995:
        return f"{value * 1e3:.0f} ms"
    return "0" if not value else f"{value * 1e3:.2g} ms" if value < 0.00995 else f"{value * 1e3:.3g} ms"


def seconds(value: float) -> str:
    """Of a wait."""
    if value <= 0:
        return "none"
    if value < 0.0995:
        return "under 0.1 s"
    return f"{value:.1f} s" if value < 99.5 else f"{value:,.0f} s"
