"""Renders the documents' tables of the GPU and its host, from the committed results.

`python -m benchmarks.plots` writes them into the documents. A test renders them again and compares, so
that no number in a table can differ from the JSON it comes from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.markdown_tables import circumstances, markdown

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/h200"
PEER = "vllm-0.26.0.json"
DECODE = "decode-llama-3.1-8b-fp8-r16.json"
SERVING = "serving-llama-3.1-8b-fp8.json"
GATEWAY = "gateway.json"
PEER_SUMS = "../h200-x2/peer-sums.json"
MISSING = "No results are committed."

STEP_BARS_MS = {
    (1, 0): 2.35, (32, 0): 2.7, (128, 0): 3.7, (256, 0): 5.4, (1, 1): 2.6,
    (32, 32): 3.9, (256, 8): 6.4, (256, 64): 7.8, (256, 256): 11.3,
}  # fmt: skip
"""(batch, distinct adapters of rank 16 in bf16) on an FP8 base: what a step may take."""
MIXED_BARS_TOK_S = {0: 21_000, 32: 17_000, 256: 14_000}

Json = dict[str, Any]
Results = Callable[[str], Json | None]
"""File name to its contents; None where there is no such file."""


def committed(folder: Path = RESULTS) -> Results:
    """Reader of the results in a folder."""

    def read(name: str) -> Json | None:
        path = folder / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    return read


def decode_table(name: str, barred: bool = False) -> Callable[[Results], str]:
    """Step times; with the bars and the peer's beside them where the work is the same."""

    def render(results: Results) -> str:
        report = results(name)
        if report is None or "rows" not in report:
            return MISSING
        peer = results(PEER) if barred else None
        theirs = {(row["batch"], row["distinct"]): row["step_ms"] for row in (peer or {}).get("rows", [])}
        columns = ["batch", "adapters", "rank", "type", "step ms", "floor ms", "ratio", "tok/s"]
        if barred:
            columns += ["bar ms", "vLLM 0.26.0 ms"]
        rows = []
        for row in report["rows"]:
            key = row["batch"], row["distinct"]
            cells = [
                *key, row["rank"], row["adapter_dtype"], row["step_ms"], row["floor_ms"], row["ratio"],
                row["decode_tok_s"],
            ]  # fmt: skip
            same_work = not row["distinct"] or (row["rank"], row["adapter_dtype"]) == ("16", "bf16")
            if barred:
                cells += [STEP_BARS_MS.get(key), theirs.get(key)] if same_work else [None, None]
            rows.append(cells)
        return f"{markdown(columns, rows)}\n\n{circumstances(report, name)}"

    return render


def summary_table(results: Results) -> str:
    """The figures that answer most questions, each with the peer's where the work is the same."""
    decode, serving, gateway = (results(name) for name in (DECODE, SERVING, GATEWAY))
    if decode is None or serving is None or gateway is None:
        return MISSING
    peer = results(PEER) or {}
    ours, theirs = (
        {(r["batch"], r["distinct"]): r["step_ms"] for r in one.get("rows", [])} for one in (decode, peer)
    )
    load, their_load = (
        {row["distinct"]: row["output_tok_s"] for row in one.get("mixed_load", [])} for one in (decode, peer)
    )
    rows: list[tuple[object, ...]] = [
        (
            f"Decode step of {batch} row{'s' if batch > 1 else ''}, {adapters}, ms",
            ours.get(key),
            theirs.get(key),
        )
        for key in ((1, 0), (256, 0), (256, 64), (256, 256))
        for batch, adapters in [(key[0], f"{key[1]} adapters" if key[1] else "no adapter")]
    ]
    rows += [
        (
            f"768 requests over {distinct} adapters, output tokens per second",
            load.get(distinct),
            their_load.get(distinct),
        )
        for distinct in (32, 256)
    ]
    most = max(row["registered"] for row in serving["rows"])
    for row in serving["rows"]:
        if row["registered"] == most and row["rate"] != "inf":
            what = f"{most:,} registered adapters, {row['rate']:g} requests per second".replace(",", " ", 1)
            rows.append((f"{what}: time to first token, p50 / p99, ms", _pair(row["ttft_ms"]), None))
    half = gateway["at_half"]
    rows += [
        ("API process: requests per CPU-second", gateway["rps_per_core"], None),
        (
            f"API process at {half['rate']:.0f} requests per second: added, p50 / p99, ms",
            _pair(half["added_ms"]),
            None,
        ),
    ]
    return markdown(("measured", "Rootstock", str(peer.get("peer", "vLLM"))), rows)


def prefill_table(name: str) -> Callable[[Results], str]:
    def render(results: Results) -> str:
        report = results(name)
        if report is None or "prefill" not in report:
            return MISSING
        columns = ("prompts", "tokens each", "adapters", "seconds", "tok/s", "of the base's")
        keys = ("prompts", "prompt_len", "distinct", "seconds", "prompt_tok_s", "ratio_to_base")
        return markdown(columns, [[row.get(key) for key in keys] for row in report["prefill"]])

    return render


def step_shares_table(name: str) -> Callable[[Results], str]:
    """Parts of decode steps by kernel."""
    parts = ("products", "head", "attention", "shrink", "expand", "norms", "silu", "rope", "quantise", "idle")

    def render(results: Results) -> str:
        report = results(name)
        if report is None:
            return MISSING
        rows = [
            [row["batch"], row["distinct"], round(row["step_us"] / 1e3, 2)]
            + [round(row["us"].get(part, 0.0) / 1e3, 2) or None for part in parts]
            for row in report["rows"]
        ]
        table = markdown(("batch", "adapters", "step ms", *parts), rows)
        return f"{table}\n\n`{name.rpartition('/')[2]}`, {report['hardware']['gpu']}"

    return render


def tensor_parallel_table(name: str) -> Callable[[Results], str]:
    """Decode steps of one model on several GPUs."""

    def render(results: Results) -> str:
        report = results(name)
        if report is None:
            return MISSING
        columns = ("GPUs", "batch", "adapters", "step ms", "floor ms", "ratio", "tok/s")
        keys = ("gpus", "batch", "distinct", "step_ms", "floor_ms", "ratio", "decode_tok_s")
        table = markdown(columns, [[row[key] for key in keys] for row in report["rows"]])
        groups = "".join(
            f"; {group['gpus']} GPUs: start {group['start_s']} s, copy {group['copy_tb_s']} TB/s"
            for group in report["groups"]
        )
        return f"{table}\n\n{circumstances(report, name.rpartition('/')[2])}{groups}"

    return render


def peer_sum_table(results: Results) -> str:
    """Sums over GPUs, with the norm behind them."""
    report = results(PEER_SUMS)
    if report is None:
        return MISSING
    columns = ("rows", "read from the other GPU us", "NCCL and norm us", "floor us")
    keys = ("rows", "read_us", "nccl_us", "floor_us")
    table = markdown(columns, [[row[key] for key in keys] for row in report["rows"]])
    found = (
        f"hidden size {report['hidden']}; a wait for the other GPU alone takes {report['meet_us']} us; "
        f"a GPU reads {report['read_gb_s']} GB/s of the other"
    )
    return f"{table}\n\n{circumstances(report, PEER_SUMS.rpartition('/')[2])}; {found}"


def mixed_table(name: str) -> Callable[[Results], str]:
    def render(results: Results) -> str:
        report, peer = results(name), results(PEER) or {}
        if report is None or "mixed_load" not in report:
            return MISSING
        theirs = {row["distinct"]: row["output_tok_s"] for row in peer.get("mixed_load", [])}
        columns = ("requests", "in / out", "adapters", "seconds", "output tok/s", "bar", "vLLM 0.26.0")
        rows = [
            [
                row["requests"], f"{row['prompt_len']} / {row['output_len']}", row["distinct"],
                row["seconds"], row["output_tok_s"], MIXED_BARS_TOK_S.get(row["distinct"]),
                theirs.get(row["distinct"]),
            ]
            for row in report["mixed_load"]
        ]  # fmt: skip
        return markdown(columns, rows)

    return render


def serving_table(results: Results) -> str:
    report = results(SERVING)
    if report is None:
        return MISSING
    columns = (
        "registered", "arrivals/s", "output tok/s", "while some wait", "TTFT p50 / p99 ms",
        "TPOT p50 / p99 ms", "in SLO", "good/s", "loads",
    )  # fmt: skip
    rows = []
    for row in report["rows"]:
        rows.append([
            row["registered"], row["rate"], row["output_tok_s"], row["steady_output_tok_s"],
            _pair(row["ttft_ms"]), _pair(row["tpot_ms"]), f"{row['goodput']['share']:.1%}",
            row["goodput"]["per_s"], row["loads"],
        ])  # fmt: skip
    return f"{markdown(columns, rows)}\n\n{circumstances(report, SERVING)}"


def cold_start_table(results: Results) -> str:
    report = results(SERVING)
    if report is None or "cold_start" not in report:
        return MISSING
    cold = report["cold_start"]
    rows = [
        ("TTFT of a request on an adapter that has to be loaded, ms", _pair(cold["cold_ttft_ms"])),
        ("TTFT of the same on a resident adapter, ms", _pair(cold["warm_ttft_ms"])),
        ("added by being cold, ms", _pair(cold["added_ms"])),
        ("a load, as the step loop sees it, ms", _pair(cold["load_ms"])),
        ("other rows' inter-token latency during loads, ms", _pair(cold["itl_during_loads_ms"])),
        ("... otherwise, ms", _pair(cold["itl_otherwise_ms"])),
        ("... during loads over otherwise", _pair(cold["itl_ratio"])),
    ]
    return markdown(("what", "p50 / p99"), rows)


def kernel_table(results: Results) -> str:
    report = results("kernels.json")
    if report is None:
        return MISSING
    columns = ("kernel", "case", "us", "GB/s", "floor us", "% of floor")
    rows = [
        (
            one["op"], one["case"], round(one["us"], 2), round(one["gigabytes_per_s"]),
            round(one["floor_us"], 2), round(one["floor_percent"]),
        )
        for one in report["figures"]
    ]  # fmt: skip
    refused = [f"Refused, check is red: {op}." for op in report.get("refused", {})]
    return "\n\n".join([markdown(columns, rows), *refused])


PREFILL_APART = "../h100-x2/prefill-apart.json"
PREFILL_APART_BAR = 1.1
"""How many times the p99 between tokens may grow through long prompts that another engine computes."""


def prefill_apart_table(results: Results) -> str:
    """The time between tokens of streams beside long prompts."""
    report = results(PREFILL_APART)
    if report is None:
        return MISSING
    names = {"alone": "none", "in_place": "on the same engine", "apart": "on another engine"}
    columns = (
        "long prompts", "between tokens p50 ms", "p99 ms", "max ms", "p99 against none", "bar",
        "first token of a long prompt, p50 s",
    )  # fmt: skip
    rows = []
    for key, name in names.items():
        one = report[key]
        rows.append(
            [
                name, *(one[f"between_tokens_ms_{figure}"] for figure in ("p50", "p99", "max")),
                one.get("p99_ratio"), PREFILL_APART_BAR if key == "apart" else None,
                one["long_first_token_s_p50"],
            ]
        )  # fmt: skip
    options, hardware = report["options"], report["hardware"]
    where = (
        f"`{Path(PREFILL_APART).name}`, {hardware['gpus']} x {hardware['gpu']}: {options['streams']} "
        f"streams, prompts of {options['prompt_tokens']} tokens one after the other, {options['shape']} in "
        f"{options['quantization']}, keys and values in {options['kv_dtype']}"
    )
    return f"{markdown(columns, rows)}\n\n{where}"


GRAMMAR_BARS = {(32, 32, 0, 8): 0.03, (256, 256, 0, 8): 0.05, (256, 256, 0, 1): 0.05}
"""(rows, constrained rows, adapters, schemas) on one GPU: by how much grammars may make a step longer."""
CPU_GRAMMAR_BAR = 0.1
"""On a CPU, for all rows."""


def draft_table(name: str) -> Callable[[Results], str]:
    """Steps and tokens per second with and without drafts."""

    def render(results: Results) -> str:
        report = results(name)
        if report is None:
            return MISSING
        columns = ["streams", "adapters", "tokens a step and stream", "step ms, without drafts", "with them",
                   "tok/s, without", "with them", "speed-up"]  # fmt: skip
        rows = [
            [row["streams"], row["distinct"], row["accepted"], row["step_ms_without"], row["step_ms"],
             row["tok_s_without"], row["tok_s"], row["speedup"]]
            for row in report["rows"]
        ]  # fmt: skip
        return f"{markdown(columns, rows)}\n\n`{name}`, {report['hardware']['gpu']}"

    return render


def grammar_table(name: str) -> Callable[[Results], str]:
    """Steps with and without grammars, of a GPU or a CPU."""

    def render(results: Results) -> str:
        report = results(name)
        if report is None:
            return MISSING
        hardware = report["hardware"]
        columns = (
            "rows", "held to a schema", "schemas", "adapters", "step ms", "without ms", "longer by", "bar",
        )  # fmt: skip
        rows = []
        for row in report["rows"]:
            bar = GRAMMAR_BARS.get((row["rows"], row["constrained"], row["distinct"], row["schemas"]))
            if "gpu" not in hardware:
                bar = CPU_GRAMMAR_BAR
            rows.append(
                [
                    row["rows"], row["constrained"], row["schemas"], row["distinct"], row["step_ms"],
                    row["step_ms_free"], f"{row['overhead']:.1%}", None if bar is None else f"{bar:.0%}",
                ]
            )  # fmt: skip
        source, threads = report["vocabulary"]["source"], report["mask_threads"]
        device = hardware.get("gpu", hardware["cpu"])
        of_masks = f"{threads} thread{'s' if threads > 1 else ''} for masks"
        where = f"`{Path(name).name}`, {device}, vocabulary: {source}, {of_masks}"
        return f"{markdown(columns, rows)}\n\n{where}"

    return render


def quality_table(results: Results) -> str:
    report = results("quality.json")
    if report is None:
        return MISSING
    columns = ("model", "base", "KV", "adapters", "mean KL", "max KL", "top-1", "accuracy", "unquantised")
    keys = (
        "model", "quantization", "kv_dtype", "adapter_dtype", "mean_kl", "max_kl", "top1", "accuracy",
        "accuracy_exact",
    )  # fmt: skip
    return markdown(columns, [[row.get(key) for key in keys] for row in report["summary"]])


def _pair(figures: Mapping[str, float]) -> str | None:
    return f"{figures['p50']:g} / {figures['p99']:g}" if figures else None


TABLES: dict[str, Callable[[Results], str]] = {
    "summary": summary_table,
    "decode": decode_table(DECODE, barred=True),
    "decode-h100": decode_table("../h100/decode-llama-3.1-8b-fp8-r16.json"),
    "decode-h100-before": decode_table("../h100/decode-llama-3.1-8b-fp8-r16-before.json"),
    "few-rows": decode_table("few-rows-after.json"),
    "few-rows-before": decode_table("few-rows-before.json"),
    "one-adapter": decode_table("rows-of-one-adapter-after.json"),
    "one-adapter-before": decode_table("rows-of-one-adapter-before.json"),
    "drafts": draft_table("speculation-synthetic.json"),
    "drafts-before": draft_table("speculation-synthetic-before.json"),
    "decode-shares-h100": step_shares_table("../h100/decode-shares.json"),
    "decode-ranks": decode_table("decode-llama-3.1-8b-fp8-ranks.json"),
    "decode-fp8-adapters": decode_table("decode-llama-3.1-8b-fp8-adapters-fp8.json"),
    "decode-fp8-kv": decode_table("decode-llama-3.1-8b-fp8-kv-fp8.json"),
    "decode-int4": decode_table("decode-llama-3.1-8b-int4-r16.json"),
    "prefill": prefill_table(DECODE),
    "mixed-load": mixed_table(DECODE),
    "grammars": grammar_table("grammars.json"),
    "grammars-h100": grammar_table("../h100/grammars.json"),
    "grammars-h100-every-mask": grammar_table("../h100/grammars-every-mask.json"),
    "cpu-grammars": grammar_table("../cpu-epyc-2-cores/grammars.json"),
    "serving": serving_table,
    "cold-start": cold_start_table,
    "tensor-parallel-70b": tensor_parallel_table("../h200-x2/tensor-parallel-llama-3.1-70b-fp8.json"),
    "tensor-parallel-70b-four": tensor_parallel_table("../h100-x4/tensor-parallel-llama-3.1-70b-fp8.json"),
    "tensor-parallel-70b-before": tensor_parallel_table(
        "../h100-x4/tensor-parallel-llama-3.1-70b-fp8-before.json"
    ),
    "tensor-parallel-8b": tensor_parallel_table("../h200-x2/tensor-parallel-llama-3.1-8b-fp8.json"),
    "few-rows-two": tensor_parallel_table("../h200-x2/few-rows-after.json"),
    "tensor-parallel-8b-h100": tensor_parallel_table("../h100-x2/tensor-parallel-llama-3.1-8b-fp8.json"),
    "tensor-parallel-8b-h100-before": tensor_parallel_table(
        "../h100-x2/tensor-parallel-llama-3.1-8b-fp8-before.json"
    ),
    "peer-sums": peer_sum_table,
    "prefill-apart": prefill_apart_table,
    "kernels": kernel_table,
    "quality": quality_table,
}
