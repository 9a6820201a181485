"""Measures what tracing costs the API, and compares the spans of 1 000 requests with what was measured and
billed.

    python -m benchmarks.tracing --out benchmarks/results/cpu-epyc-2-cores/tracing.json

`cost`: an API process under load records spans, at a sampling of 1 %, in every second turn of 400 requests;
the CPU seconds of turns that follow each other are compared (`benchmarks.tracing_turns`), so that what else
runs on the machine slows both alike, and the median of many pairs counts. The exporter's thread is added.
`between_two_alike` is the same for turns without spans: how exact that is. `alone` is the CPU time of the
root span without any other process: of a request that is not sampled, and of one that is.

`agreement`: requests one after the other through an API process and an engine that record every span. Phases
must add up to their request's span, that to the duration in the access log and to what the client measured;
an engine's parts to its span; and the tokens in the spans must be those of the ledger.

Everything is as in `benchmarks.gateway`. Spans go to a collector in this process.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
import psycopg
from opentelemetry.sdk.trace import SpanProcessor
from sqlalchemy import make_url

from api.request_trace import begin_request
from benchmarks.gateway import PROMPT_WORDS, open_bench
from benchmarks.gateway_site import BASE_NAME, Site, free_port, running_site, stop
from benchmarks.gateway_traffic import run_beside
from benchmarks.otlp_receiver import OtlpReceiver, ReceivedSpan, receiving_spans
from benchmarks.random_llama import random_words
from benchmarks.report import write_report
from benchmarks.tracing_turns import REQUESTS_A_TURN, Turns
from telemetry.sampling import HeadSampling
from telemetry.tracing import Tracing

SAMPLED = 0.01
AT_ONCE = 16
"""Requests under way: at the end of a turn so many are left to the next."""
WARM_UP_PAIRS = 5
MIN_PAIRS = 10
REQUESTS = 1_000
PHASES = ("authenticate", "prepare", "reserve", f"chat {BASE_NAME}", "respond")
PARTS = ("queue", "prefill", "decode", "journal")
ROOT = "POST /v1/chat/completions"
REPEATS_ALONE = 20_000
METERING_S = 900.0
"""For the worker to meter what the load before has left, on a busy machine."""


class Disagreement(Exception):
    """Spans are missing, or differ from what was measured or billed."""


def start_api(site: Site, name: str, module: str = "api.main", *arguments: str, **settings: str) -> str:
    """Starts a further API process on the measured core. Returns its URL."""
    port = free_port()
    process = site.start(
        *("-m", module, *arguments),
        cores=site.cores.measured,
        ROOTSTOCK_API_NAME=name,
        ROOTSTOCK_API_PORT=str(port),
        ROOTSTOCK_API_ENGINE_ENDPOINT=site.engine_endpoint(0),
        **settings,
    )
    site.apis.append(process)
    site.urls.append(f"http://127.0.0.1:{port}")
    site.wait_until_ready()
    return site.urls[-1]


# Cost ------------------------------------------------------------------------------------------------------


def measure_cost(site: Site, receiver: OtlpReceiver, seconds: float, seed: int) -> dict[str, Any]:
    """Compares the CPU of a process's turns with spans and without, in pairs that follow each other."""
    bench = open_bench(site, seed)
    written = site.folder / "turns.json"
    url = start_api(
        site,
        "turns",
        "benchmarks.tracing_turns",
        str(written),
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
        OTEL_TRACES_SAMPLER="parentbased_traceidratio",
        OTEL_TRACES_SAMPLER_ARG=str(SAMPLED),
    )
    received_before = len(receiver.spans)
    task = bench.task(seconds, urls=[f"{url}/v1/chat/completions"], at_once=AT_ONCE)
    outcome = run_beside(task, site.cores.others)
    if outcome.failures:
        raise Disagreement(f"{outcome.failures} beside {outcome.requests} answers; {site.warnings()}")
    stop(site.apis.pop())
    site.urls.pop()
    turns = msgspec.json.decode(written.read_bytes(), type=Turns)
    # The first turns warm the process up.
    off, on = turns.off[WARM_UP_PAIRS:], turns.on[WARM_UP_PAIRS:]
    if len(off) < MIN_PAIRS:
        raise Disagreement(f"only {len(off)} pairs of turns: take more seconds")
    base = statistics.median(off)
    exporter = turns.exporter_cpu / turns.requests_on
    pairs = [one / other - 1 + exporter / base for one, other in zip(on, off, strict=True)]
    alike = [later / earlier - 1 for earlier, later in itertools.pairwise(off)]
    roots = [span for span in receiver.spans[received_before:] if span.name == ROOT]
    return {
        "sampling": SAMPLED,
        "requests_a_turn": REQUESTS_A_TURN,
        "pairs": len(pairs),
        "requests": outcome.requests,
        "cpu_us_per_request": {
            "off": round(base * 1e6, 1),
            "exporter": round(exporter * 1e6, 2),
        },
        "more_cpu": _described(pairs, seed),
        "between_two_alike": _described(alike, seed),
        "requests_in_spans": len(roots),
    }


def _described(values: Sequence[float], seed: int) -> dict[str, Any]:
    """The median, the mean of the middle four fifths, which varies less, their 95 % intervals by bootstrap,
    and the quartiles.
    """
    rng = np.random.default_rng(seed)
    found = np.asarray(values)
    drawn = rng.choice(found, (2_000, len(found)))
    return {
        "median": round(statistics.median(values), 4),
        "median_95": [round(float(one), 4) for one in np.quantile(np.median(drawn, axis=1), (0.025, 0.975))],
        "middle_mean": round(float(_middle_mean(found)), 4),
        "middle_mean_95": [round(float(one), 4) for one in np.quantile(_middle_mean(drawn), (0.025, 0.975))],
        "quartiles": [round(float(one), 4) for one in np.quantile(values, (0.25, 0.75))],
    }


def _middle_mean(values: np.ndarray) -> Any:
    """Returns the mean without the lowest and the highest tenth, along the last axis."""
    cut = values.shape[-1] // 10
    return np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut].mean(axis=-1)


def measure_alone() -> dict[str, Any]:
    """Measures the CPU microseconds of a request's root span, not sampled and sampled, without its export."""

    def each(share: float, headers: dict[bytes, bytes]) -> float:
        tracing = Tracing(SpanProcessor(), HeadSampling(round(share * 2**64), follows_parent=True))
        best = float("inf")
        for _ in range(5):
            began = time.process_time()
            for _ in range(REPEATS_ALONE // 5):
                trace = begin_request(tracing, "POST", headers, time.perf_counter())
                if trace is not None:
                    for phase in PHASES[:3]:
                        trace.mark(phase)
                    trace.finish(ROOT, time.perf_counter(), 200, {"http.request.method": "POST"})
            best = min(best, (time.process_time() - began) / (REPEATS_ALONE // 5))
        return round(best * 1e6, 2)

    parent = {b"traceparent": b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}
    return {
        "not_sampled_us": each(0.0, {}),
        "not_sampled_with_parent_us": each(0.0, parent),
        "sampled_us": each(1.0, {}),
    }


# Agreement ----------------------------------------------------------------------------------------------


def ask(url: str, keys: Sequence[str], prompts: Sequence[str]) -> dict[str, float]:
    """Sends the requests one after the other, every second one as a stream. Returns the milliseconds of each,
    by its request id.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    measured = {}
    for number in range(REQUESTS):
        prompt = prompts[number % len(prompts)]
        body = {
            "model": BASE_NAME,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 4 + number % 13,
            "stream": bool(number % 2),
        }
        headers = {"authorization": f"Bearer {keys[number % len(keys)]}", "content-type": "application/json"}
        content = json.dumps(body)
        began = time.perf_counter()
        connection.request("POST", parts.path or "/v1/chat/completions", content, headers)
        answered = connection.getresponse()
        answered.read()
        took = time.perf_counter() - began
        if answered.status != 200:
            raise Disagreement(f"request {number} got {answered.status}")
        measured[answered.headers["x-request-id"]] = took * 1e3
    connection.close()
    return measured


def measure_agreement(site: Site, receiver: OtlpReceiver, prompts: Sequence[str]) -> dict[str, Any]:
    url = start_api(site, "api-traced", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint)
    site.start_engines(0.001, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint)
    log_from = (site.folder / "log").stat().st_size
    received_before = len(receiver.spans)
    measured = ask(url, site.keys[:50], prompts)
    spans = _received(receiver, received_before)
    children: dict[str, list[ReceivedSpan]] = {}
    for span in spans:
        children.setdefault(span.parent_id, []).append(span)
    roots = {span.attributes["rootstock.request.id"]: span for span in spans if span.name == ROOT}
    if roots.keys() != measured.keys():
        raise Disagreement(f"{len(roots)} requests have a span, of {len(measured)}")
    logged = _logged(site.folder / "log", log_from)
    answers = {root: _one(children[span.span_id], PHASES[3]) for root, span in roots.items()}
    engines = {root: _one(children[answer.span_id], "engine request") for root, answer in answers.items()}
    return {
        "requests": len(roots),
        "phases_less_request_ms": _largest(
            _sum_ms(children[span.span_id], PHASES) - span.seconds * 1e3 for span in roots.values()
        ),
        "request_less_log_ms": _largest(
            span.seconds * 1e3 - logged[request_id] for request_id, span in roots.items()
        ),
        "parts_less_engine_ms": _largest(
            _sum_ms(children[span.span_id], PARTS) - span.seconds * 1e3 for span in engines.values()
        ),
        "client_less_request_ms": _spread(
            [measured[request_id] - span.seconds * 1e3 for request_id, span in roots.items()]
        ),
        "answer_less_engine_ms": _spread(
            [(answers[one].seconds - engines[one].seconds) * 1e3 for one in roots]
        ),
        "billed": _compare_with_ledger(site, list(answers.values()), list(engines.values())),
    }


def _received(receiver: OtlpReceiver, begin: int, seconds: float = 60.0) -> list[ReceivedSpan]:
    """Returns the spans once all requests have those of the API and of the engine."""
    deadline = time.monotonic() + seconds
    while True:
        spans = receiver.spans[begin:]
        complete = all(
            sum(span.name == name for span in spans) >= REQUESTS for name in (ROOT, "engine request")
        )
        if complete:
            time.sleep(6.0)  # children may be in the next batch
            return receiver.spans[begin:]
        if time.monotonic() > deadline:
            raise Disagreement(f"{len(spans)} spans came")
        time.sleep(0.2)


def _logged(log: Path, begin: int) -> dict[str, float]:
    """Returns the milliseconds of each request in the access log, by its id."""
    with log.open("rb") as opened:
        opened.seek(begin)
        lines = [json.loads(line) for line in opened if line.startswith(b"{")]
    return {line["request_id"]: line["ms"] for line in lines if line.get("event") == "request"}


def _compare_with_ledger(
    site: Site, answers: Sequence[ReceivedSpan], engines: Sequence[ReceivedSpan]
) -> dict[str, int]:
    """Compares every request's tokens in both spans with its row. Raises Disagreement."""
    told = {
        span.attributes["gen_ai.response.id"]: tuple(
            span.attributes[f"gen_ai.usage.{name}_tokens"] for name in ("input", "cache_read.input", "output")
        )
        for span in answers
    }
    counted = {
        span.attributes["rootstock.request.id"]: tuple(
            span.attributes[f"rootstock.billed.{name}_tokens"] for name in ("input", "cached", "output")
        )
        for span in engines
    }
    deadline = time.monotonic() + METERING_S
    url = make_url(site.owner_url).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
        while True:
            rows = connection.execute(
                "SELECT request_id, prompt_tokens, cached_tokens, completion_tokens FROM usage_records "
                "WHERE request_id = ANY(%s)",
                (list(told),),
            ).fetchall()
            if len(rows) == len(told):
                break
            if time.monotonic() > deadline:
                raise Disagreement(f"the ledger has {len(rows)} requests of {len(told)}")
            time.sleep(0.2)
    billed = {str(row[0]): tuple(row[1:]) for row in rows}
    differing = [one for one in billed if not billed[one] == told[one] == counted.get(one)]
    if differing:
        raise Disagreement(f"{len(differing)} requests differ, {differing[0]} among them")
    return {
        "ledger_rows": len(billed),
        "tokens": sum(row[0] + row[2] for row in billed.values()),
        "differing_requests": 0,
    }


def _one(spans: Sequence[ReceivedSpan], name: str) -> ReceivedSpan:
    (found,) = [span for span in spans if span.name == name]
    return found


def _sum_ms(spans: Sequence[ReceivedSpan], names: Sequence[str]) -> float:
    return sum(_one(spans, name).seconds for name in names) * 1e3


def _largest(values: Any) -> float:
    """Returns the largest difference, without its sign."""
    return round(max(abs(value) for value in values), 4)


def _spread(values: Sequence[float]) -> dict[str, float]:
    found = {
        name: float(np.quantile(values, share)) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1))
    }
    within = sum(abs(value) <= 1.0 for value in values) / len(values)
    return {**{name: round(value, 3) for name, value in found.items()}, "share_within_1_ms": round(within, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="where to write the report")
    parser.add_argument("--seconds", type=float, default=300.0, help="of the load that costs are from")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--beside", default="", help="what else runs on the machine, for the report")
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    alone = measure_alone()
    with (
        tempfile.TemporaryDirectory(prefix="rs-tr-") as folder,
        receiving_spans() as receiver,
        running_site(Path(folder)) as site,
    ):
        cost = measure_cost(site, receiver, arguments.seconds, arguments.seed)
        print(json.dumps({"cost": {**cost, "alone": alone}}), flush=True)
        rng = np.random.default_rng(arguments.seed)
        agreement = measure_agreement(site, receiver, [random_words(rng, PROMPT_WORDS) for _ in range(64)])
        placement = site.cores.described()
    report = {
        "cost": {**cost, "alone": alone},
        "agreement": agreement,
        "setting": {"placement": placement, "beside": arguments.beside},
        "load_average": {"before": round(load_before, 2), "after": round(os.getloadavg()[0], 2)},
    }
    write_report(arguments.out, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
