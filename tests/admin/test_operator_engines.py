"""The live page of engines: what it draws of a report, for whom, and how it says that an engine is gone."""

from __future__ import annotations

import re
import time
from typing import Any

import httpx
import msgspec

from admin.charts import live
from admin.operator.engines import charts as pictures
from admin.operator.engines.report import EngineReport
from engine.gauges import EngineStats, EngineView, Share, SlotView, StepSecond
from engine.protocol import EngineInfo
from tests.admin.conftest import Site, sign_in
from tests.admin.operators import operate

XSS = "<img src=x onerror=alert(1)>"
NOW = 1_763_700_000


def view(at: float = NOW, **fields: Any) -> EngineView:
    """Of an engine with a tenant on an adapter, and another that waits."""
    stats = EngineStats(
        engine_id="engine-0",
        incarnation="i1",
        running=5,
        rows_total=8,
        waiting={"priority": 0, "default": 3, "flex": 0},
        running_by_class={"priority": 1, "default": 4, "flex": 0},
        predicted_wait={"priority": 0.0, "default": 2.5, "flex": 30.0},
        preempted={"default": 7},
        shed={"flex": 11},
        blocks_total=100,
        blocks_used=40,
        slots_total=4,
        slots_resident=2,
        steps=1234,
        step_seconds=10.0,
    )
    known: dict[str, Any] = {
        "stats": stats,
        "taken_at": at,
        "started_at": at - 3600,
        "max_batch_tokens": 2048,
        "block_size": 16,
        "blocks_cached": 25,
        "prefill_tokens": [0, 300, 0],
        "decode_rows": [1, 3, 0],
        "oldest_wait": [0.0, 1.25, 0.0],
        "step_p50": 0.0123,
        "step_p99": 0.045,
        "seconds": [second(int(at) - 10), second(int(at) - 4)],
        "slots": [
            SlotView(2, "a" * 64, 16, 2_000_000, False, True, False, 4, 0),
            SlotView(0, "b" * 64, 8, 1_000_000, True, False, False, 0, 3),
        ],
        "shares": [
            Share("tenant-x", "a" * 64, "default", 4, 1, 500, 0, 0.0),
            Share("tenant-y", None, "priority", 1, 0, 50, 3, 1.25),
        ],
        "num_shares": 2,
        "memory": {"weights": 3_000_000_000, "kv": 1_000_000_000},
    }
    return EngineView(**(known | fields))


def second(at: int, **fields: Any) -> StepSecond:
    known: dict[str, Any] = {
        "at": at,
        "steps": 10,
        "step_seconds": 0.2,
        "p50": 0.01,
        "p99": 0.04,
        "prefill_tokens": [0, 100, 0],
        "decode_rows": [10, 30, 0],
        "completion_tokens": 40,
        "prompt_tokens": 100,
        "cached_tokens": 25,
        "preemptions": 1,
        "shed": 2,
        "adapter_loads": 1,
        "adapter_evictions": 1,
        "blocks_used": 40,
        "waiting": [0, 3, 0],
    }
    return StepSecond(**(known | fields))


def report(**fields: Any) -> EngineReport:
    info = EngineInfo("engine-0", "i1", "sapling", "0" * 64, "fp8", "cuda:0", 4096, 4095, 32000, "test")
    now = time.time()
    known: dict[str, Any] = {
        "key": "engine-0",
        "state": "serving",
        "reported_at": now,
        "since": now - 60,
        "info": info,
        "view": view(now),
    }
    return EngineReport(**(known | fields))


def words_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


async def test_the_page_is_nothing_to_a_tenant(site: Site, visitor: httpx.AsyncClient) -> None:
    site.engines.reports = [report()]
    await sign_in(visitor)
    nothing = (await visitor.get("/no/such/page")).text
    for path in ("/operator/engines", "/operator/engines/live", "/operator/engines/report.json"):
        refused = await visitor.get(path)
        assert (refused.status_code, refused.text) == (404, nothing)


async def test_an_operator_sees_what_runs_and_where_it_leads(site: Site, visitor: httpx.AsyncClient) -> None:
    resolved = await site.place.make_ready(await site.place.create("pirate"), "1")
    known = [Share(site.tenant_id, resolved.digest, "default", 4, 1, 500), Share("gone", None, "flex", 1)]
    slots = [SlotView(2, resolved.digest, 16, 2_000_000, False, True, False, 4, 0)]
    shown = report(view=view(time.time(), shares=known, slots=slots))
    assert shown.info is not None
    divided = msgspec.structs.replace(shown.info, engine_id="engine-1", tensor_parallel=4)
    site.engines.reports = [shown]
    await operate(site, visitor)
    page = await visitor.get("/operator/engines")
    assert page.status_code == 200
    tenant = f'href="/console/operator/tenants/{site.tenant_id}"'
    assert page.text.count(tenant) == 2, "beside its adapter's slot, and beside its rows"
    text = words_of(page.text)
    assert "sapling on cuda:0, fp8" in text
    assert "Batch size 5 of 8 rows; 3 queued" in text
    assert "Step time 12.3 ms p99 45 ms" in text
    assert "pirate@1" in text
    assert "Default 3 1.2 s 2.5 s 4 7 0" in text
    assert "Prefix cache hit rate 25.0 %" in text
    assert "Weights 3.0 GB" in text
    document = (await visitor.get("/operator/engines/report.json")).json()
    (one,) = document["data"]
    assert one["view"]["slots"][0]["digest"] == resolved.digest
    assert one["adapters"][resolved.digest]["adapter"] == "pirate"
    site.engines.reports = [report(key="engine-1", info=divided)]
    assert "sapling on cuda:0, tensor parallel over 4, fp8" in words_of(
        (await visitor.get("/operator/engines")).text
    )
    assert one["view"]["seconds"][0]["decode_rows"] == [10, 30, 0]
    live = await visitor.get("/operator/engines/live?engine=engine-0")
    assert live.text.lstrip().startswith("<div")
    assert live.headers["content-encoding"] == "gzip"


async def test_a_large_engine_at_work_is_a_small_page(site: Site, visitor: httpx.AsyncClient) -> None:
    """256 slots and rows, all of five minutes, and as many shares as a view has."""
    now = time.time()
    seconds = [
        second(
            int(now) - ago, decode_rows=[ago % 60, 900 + 7 * ago % 300, ago % 90], p99=0.02 + ago % 9 / 100
        )
        for ago in range(299, 0, -1)
    ]
    slots = [
        SlotView(at, f"{at:064x}", 16, 80_000_000, False, at % 9 == 0, False, at % 4, 0) for at in range(256)
    ]
    shares = [Share(f"tenant-{at}", f"{at:064x}", "default", 4, 1, 500, 1, 2.0) for at in range(64)]
    stats = msgspec.structs.replace(view().stats, rows_total=256, running=256, slots_total=256)
    shown = view(now, seconds=seconds, slots=slots, shares=shares, num_shares=64, stats=stats)
    site.engines.reports = [report(view=shown)]
    await operate(site, visitor)
    page = await visitor.get("/operator/engines")
    assert page.status_code == 200
    assert len(page.content) < 100_000
    assert int(page.headers["content-length"]) < 25_000


async def test_an_engine_that_is_gone_starts_drains_or_is_silent_is_shown_as_such(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await operate(site, visitor)
    page = await visitor.get("/operator/engines")
    assert "No engines" in page.text
    said = {}
    for state in ("starting", "draining", "gone"):
        site.engines.reports = [report(state=state, view=None if state == "starting" else view(time.time()))]
        said[state] = words_of((await visitor.get("/operator/engines")).text)
    assert "Starting" in said["starting"]
    assert "Batch size" not in said["starting"]
    assert "finishing current requests and rejecting new ones" in said["draining"]
    assert "This engine has been unreachable since" in said["gone"]
    assert "Batch size 5 of 8 rows" in said["gone"], "the last that was seen of it"
    site.engines.reports = [report(view=view(time.time() - 9))]
    assert "No update for 9 s" in words_of((await visitor.get("/operator/engines")).text)
    never = report(key="tcp://10.0.0.9:5555", state="gone", info=None, view=None)
    site.engines.reports = [report(), never]
    page = await visitor.get("/operator/engines?engine=tcp://10.0.0.9:5555")
    assert "Not reached yet" in page.text
    assert "engine=engine-0" in page.text, "the other is a click away"
    assert "sapling on" in (await visitor.get("/operator/engines?engine=unheard-of")).text


async def test_prompts_computed_on_another_engine_are_shown_on_both_pages(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await operate(site, visitor)
    stats = msgspec.structs.replace(
        view(time.time()).stats,
        prefill_sources=2,
        prompts_fetched=5,
        prompts_fetching=1,
        fetched_tokens=160_000,
        fetch_fallbacks={"lost": 3, "timeout": 1},
    )
    info = msgspec.structs.replace(report().info, engine_id="prefill-0", role="prefill")
    theirs = msgspec.structs.replace(view(time.time()).stats, prompts_exported=8, exported_tokens=170_000)
    site.engines.reports = [
        report(view=view(time.time(), stats=stats)),
        report(key="prefill-0", info=info, view=view(time.time(), stats=theirs)),
    ]
    serving = words_of((await visitor.get("/operator/engines?engine=engine-0")).text)
    assert "Prefill engines 2 connected" in serving
    assert "Prompts from prefill engines 5, 1 under way" in serving
    assert "Long prompts computed here 3 lost, 1 timeout" in serving
    prefill = words_of((await visitor.get("/operator/engines?engine=prefill-0")).text)
    assert "computes prompts for other engines" in prefill
    assert "Prompts computed for other engines 8" in prefill
    refused = msgspec.structs.replace(stats, prefill_refusals=("kv_dtype bfloat16 instead of float32",))
    site.engines.reports = [report(view=view(time.time(), stats=refused))]
    page = words_of((await visitor.get("/operator/engines")).text)
    assert "Long prompts are computed here: kv_dtype bfloat16 instead of float32." in page


async def test_names_are_shown_as_they_are_written(site: Site, visitor: httpx.AsyncClient) -> None:
    info = msgspec.structs.replace(report().info, base=XSS)
    shares = [Share(XSS, None, "default", 1)]
    site.engines.reports = [report(key=XSS, info=info, view=view(shares=shares, slots=[]))]
    await operate(site, visitor)
    page = await visitor.get("/operator/engines")
    assert XSS not in page.text
    assert "&lt;img" in page.text


# Pictures ---------------------------------------------------------------------------------------------------


def test_seconds_lie_where_they_belong() -> None:
    taken = view(at=NOW + 0.5)
    columns = pictures.columns_of(taken)
    assert len(columns) == pictures.NUM_COLUMNS
    filled = [at for at, column in enumerate(columns) if column.steps]
    end = NOW // pictures.COLUMN_SECONDS
    assert filled == [
        pictures.NUM_COLUMNS - (end - (NOW - ago) // pictures.COLUMN_SECONDS) for ago in (10, 4)
    ]
    rows, prompts, _, tokens = pictures.step_charts(columns)
    assert [one.now for one in rows.legend] == ["0", "0", "0"]
    assert "at most 4 in" in rows.words
    assert "at most 10 in" in prompts.words
    assert tokens.legend[0].name == "generated"
    assert pictures.recent(columns, "completion_tokens") == (8.0 if 10 // 2 <= 5 else 4.0)


def test_the_batch_has_a_square_for_every_row() -> None:
    drawn = pictures.rows_of(view())
    assert [(kind.name, kind.is_prefill, kind.count) for kind in drawn.kinds if kind.count] == [
        ("Priority", False, 1),
        ("Default", False, 3),
        ("Default", True, 1),
        ("Free", False, 3),
    ]
    assert sum(kind.path.count("M") for kind in drawn.kinds) == 8
    stats = msgspec.structs.replace(view().stats, rows_total=4096, running=0, running_by_class={})
    many = pictures.rows_of(view(stats=stats, shares=[]))
    assert many.rows_per_cell == 8
    assert sum(kind.path.count("M") for kind in many.kinds) == 512


def test_a_whole_is_shared_out_completely() -> None:
    for parts in (pictures.block_parts(view()), pictures.memory_parts(view())):
        assert abs(sum(part.width for part in parts) - 100) < 0.01
    assert [part.value for part in pictures.block_parts(view())] == ["40", "25", "35"]
    assert pictures.memory_parts(view(memory={})) == []


def test_a_slot_is_filled_as_high_as_its_adapter_is_large() -> None:
    drawn = pictures.slot_map(view(), lambda slot: f"adapter {slot.digest[0]}")
    assert drawn.ground.count("M") == 4
    assert drawn.idle == ""
    loading, used = drawn.cells
    assert (loading.tone, loading.x, loading.fill_y, loading.fill) == ("c4", 0, 4, 4)
    assert (used.tone, used.x, used.fill_y, used.fill) == ("input", 20, 0, 8)
    assert used.title == "adapter a, in use, 4 rows"
    assert drawn.pins == [(24, 4)]
    idle = SlotView(1, "c" * 64, 8, 1_000_000, False, False, False, 0, 0)
    assert pictures.slot_map(view(slots=[idle]), lambda slot: "").idle == "M10 0h8v8h-8z"
    assert pictures.slot_map(view(slots=[]), lambda slot: "").cells == []


def test_a_strip_is_drawn_in_steps_and_broken_where_nothing_is_known() -> None:
    layer = live.Layer("one", "input", [None, 50.0, 50.0, None, 100.0, 0.0])
    (line,) = live.lines("Lines", [layer], str, 1.0).layers
    assert line.path == "M1 50H3M4 0H5V100H6"
    low, high = live.Layer("low", "input", [1.0, 1.0]), live.Layer("high", "output", [0.0, 3.0])
    strip = live.stacked("Stacked", [low, high], str)
    assert [one.path for one in strip.legend] == ["M0 100H0V75H2V100z", "M0 100H0V75H1V0H2V100z"]
    assert [one.name for one in strip.layers] == ["high", "low"], "the lower one is painted over the other"
    assert strip.ticks == [(0, "4.0"), (50, "2.0"), (100, "0.0")]
    assert [live.round_up(value) for value in (0.003, 1, 1.1, 30, 41, 512)] == [0.004, 1, 2, 40, 50, 1000]


def test_times_are_told_with_the_digits_that_count() -> None:
    told = [pictures.milliseconds(value) for value in (0, 0.000123, 0.0042, 0.0123, 0.25, 1.5, 75)]
    assert told == ["0", "0.12 ms", "4.2 ms", "12.3 ms", "250 ms", "1.50 s", "75 s"]
    assert [pictures.seconds(value) for value in (0, 0.05, 2.51, 120)] == [
        "none",
        "under 0.1 s",
        "2.5 s",
        "120 s",
    ]


async def test_the_device_is_never_idle_for_more_than_all_the_time(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    """A slow host: 117 s between steps of 10 s in all were 1170 % of the steps."""
    await operate(site, visitor)
    stats = msgspec.structs.replace(view().stats, step_gap_seconds=117.0)
    site.engines.reports = [report(view=view(stats=stats))]
    text = words_of((await visitor.get("/operator/engines")).text)
    assert "Device idle between steps 92.1 %" in text


async def test_drafts_are_shown_by_engine_and_by_adapter(site: Site, visitor: httpx.AsyncClient) -> None:
    await operate(site, visitor)
    stats = msgspec.structs.replace(view().stats, drafted_tokens=400, accepted_tokens=300, draft_steps=120)
    slot = SlotView(1, "c" * 64, 8, 1_000_000, False, False, False, 0, 0, 80, 20)
    site.engines.reports = [report(view=view(stats=stats, slots=[slot]))]
    text = words_of((await visitor.get("/operator/engines")).text)
    assert "Drafted tokens accepted 75.0 %" in text
    assert "Tokens gained per step with drafts 2.50" in text
    assert "25.0 %" in text.split("Drafts accepted")[1]
