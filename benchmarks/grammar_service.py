"""Measures what grammars cost at the API: the first token of a schema or a set of tools that was never seen
or was seen before, and what hostile grammars cost everybody else.

    python -m benchmarks.grammar_service --out benchmarks/results/cpu-epyc-2-cores/grammar-service.json

The whole service on this machine's cores, as in `benchmarks.gateway`, with the sapling base on an engine.

`first_token_ms`: from the request to the first byte of its stream, one request at a time, the kinds in turns.
`added_ms` is the difference to the same request without a grammar (with tools: with `tool_choice` none, so
that the prompt is the same).

`hostile`: one tenant sends every grammar of `benchmarks.hostile_grammars`, two at once, again and again,
while another streams: the answers' statuses and seconds, by how much each process grew, and the time between
the other's tokens, in turns with periods in which an honest tenant sends as many requests: those that were
answered with an ordinary pattern, the others with one that is refused at once.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np

from benchmarks.gateway_site import BASE_NAME, Site, running_site
from benchmarks.hostile_grammars import HOSTILE
from benchmarks.report import write_report
from engine.protocol import Grammar

MESSAGES = [{"role": "user", "content": "Describe the animal."}]
PERIODS = 4
"""Beside the hostile tenant and beside an honest one, each."""
SENDERS = 2
PACE_S = 0.25
"""From one request of a sender to its next, at least."""
ORDINARY = Grammar("regex", "[a-z ]{200}")
INVALID = Grammar("regex", "(a")
STREAM_TOKENS = 600

Fields = dict[str, Any]
Answer = tuple[str, int, float]
"""(name of the request, status, seconds)."""


def record(name: str) -> dict[str, Any]:
    """A schema as applications send it; one for each name."""
    return {
        "type": "object",
        "properties": {
            name: {"type": "string", "maxLength": 40},
            "created": {"type": "string", "format": "date-time"},
            "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
            "owner": {
                "type": "object",
                "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 150}},
                "required": ["age"],
                "additionalProperties": False,
            },
        },
        "required": [name, "created", "tags", "owner"],
        "additionalProperties": False,
    }


def schema_fields(name: str) -> Fields:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": record(name)}}}


def tool_fields(name: str, choice: str) -> Fields:
    functions = [
        {"type": "function", "function": {"name": f"{verb}_{name}", "parameters": record(name)}}
        for verb in ("find", "change")
    ]
    return {"tools": functions, "tool_choice": choice}


KINDS: dict[str, Callable[[str], Fields]] = {
    "free": lambda _: {},
    "schema never seen": schema_fields,
    "schema seen": lambda _: schema_fields("same"),
    "tools never seen, no calls": lambda name: tool_fields(name, "none"),
    "tools never seen": lambda name: tool_fields(name, "required"),
    "tools seen, no calls": lambda _: tool_fields("same", "none"),
    "tools seen": lambda _: tool_fields("same", "required"),
}
WITHOUT = {
    "schema never seen": "free",
    "schema seen": "free",
    "tools never seen": "tools never seen, no calls",
    "tools seen": "tools seen, no calls",
}
"""What each kind is compared with."""


class Caller:
    """One tenant's requests to the API."""

    def __init__(self, site: Site, number: int) -> None:
        self._http = httpx.Client(
            base_url=site.url,
            headers={"authorization": f"Bearer {site.keys[number]}"},
            trust_env=False,
            timeout=60,
        )

    def first_byte_s(self, fields: Fields) -> float:
        body = self._body({"max_tokens": 4, **fields})
        began = time.perf_counter()
        with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
            pieces = answer.iter_raw()
            first = next(pieces)
            seconds = time.perf_counter() - began
            for _ in pieces:
                pass
        if answer.status_code != 200:
            raise SystemExit(f"{answer.status_code} in place of a token: {first[:500]!r}")
        return seconds

    def ask(self, content: bytes) -> tuple[int, float]:
        """Returns (status, seconds)."""
        began = time.perf_counter()
        answer = self._http.post("/v1/chat/completions", content=content)
        return answer.status_code, time.perf_counter() - began

    def token_gaps(self, seconds: float) -> Iterator[float]:
        """Yields the seconds between the tokens of one stream after the other."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            body = self._body({"max_tokens": STREAM_TOKENS, "ignore_eos": True})
            with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
                last = 0.0
                for _ in answer.iter_raw():
                    now = time.perf_counter()
                    if last:
                        yield now - last
                    last = now
                    if time.monotonic() > until:
                        return

    def _body(self, fields: Fields) -> Fields:
        return {"model": BASE_NAME, "messages": MESSAGES, "stream": True, "temperature": 0, **fields}


def first_tokens(caller: Caller, repeats: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(repeats + 1):
        for kind, fields in KINDS.items():
            measured = caller.first_byte_s(fields(f"{kind.replace(' ', '_').replace(',', '')}_{number}"))
            if number:  # the first of each is seen for the first time
                seconds[kind].append(measured)
    return {
        "first_token_ms": {kind: _ms(values) for kind, values in seconds.items()},
        "added_ms": {
            kind: round(1e3 * (median(seconds[kind]) - median(seconds[other])), 2)
            for kind, other in WITHOUT.items()
        },
    }


def hostile(site: Site, caller: Caller, period_s: float) -> dict[str, Any]:
    requests = {name: _request(grammar) for name, grammar in {**HOSTILE, **_oversized()}.items()}
    processes = _processes(site)
    list(caller.token_gaps(1.0))
    begun = {name: resident_bytes(pid) for name, pid in processes.items()}
    for pid in processes.values():
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # their peaks begin anew
    gaps: dict[str, list[list[float]]] = {"hostile": [], "honest": []}
    answers: list[Answer] = []
    for _ in range(PERIODS):
        gaps["hostile"].append(_beside(site, caller, requests, period_s, answers))
        refused = {name for name, status, _ in answers if status != 200}
        honest = {name: _request(INVALID if name in refused else ORDINARY) for name in requests}
        gaps["honest"].append(_beside(site, caller, honest, period_s, []))
    grew = {name: round((peak_bytes(pid) - begun[name]) / 2**20, 1) for name, pid in processes.items()}
    medians = {kind: median(gap for period in periods for gap in period) for kind, periods in gaps.items()}
    by_name = {name: [one for one in answers if one[0] == name] for name in requests}
    return {
        "requests": len(answers),
        "answers": {
            name: {
                "statuses": dict(Counter(str(status) for _, status, _ in found)),
                "longest_s": round(max(seconds for _, _, seconds in found), 3),
            }
            for name, found in by_name.items()
            if found
        },
        "longest_refusal_s": round(max(seconds for _, status, seconds in answers if status != 200), 3),
        "grew_mb": grew,
        "token_gap_ms": {
            kind: _ms([gap for period in periods for gap in period]) for kind, periods in gaps.items()
        },
        "token_gap_ms_by_period": {
            kind: [round(1e3 * median(period), 2) for period in periods] for kind, periods in gaps.items()
        },
        "token_gap_added": round(medians["hostile"] / medians["honest"] - 1, 3),
    }


def _beside(
    site: Site, caller: Caller, requests: dict[str, bytes], seconds: float, answers: list[Answer]
) -> list[float]:
    """Returns the time between the caller's tokens while another tenant sends `requests`."""
    is_over = threading.Event()
    with ThreadPoolExecutor(SENDERS) as senders:
        for number in range(SENDERS):
            senders.submit(_send, site, number, requests, is_over, answers)
        try:
            return list(caller.token_gaps(seconds))
        finally:
            is_over.set()


def _oversized() -> dict[str, Grammar]:
    return {
        "10^6 alternatives": Grammar("choice", json.dumps([str(number) for number in range(1_000_000)])),
        "10 MB": Grammar("regex", "x" * (10 << 20)),
    }


def _request(grammar: Grammar) -> bytes:
    fields: Fields = {"model": BASE_NAME, "messages": MESSAGES, "max_tokens": 40, "temperature": 1.0}
    if grammar.kind == "choice":
        return json.dumps({**fields, "choice": json.loads(grammar.source)}).encode()
    if grammar.kind != "json_schema":
        return json.dumps({**fields, {"lark": "grammar"}.get(grammar.kind, "regex"): grammar.source}).encode()
    held = {"type": "json_schema", "json_schema": {"name": "it", "schema": "SCHEMA"}}
    # As it is written: some are nested deeper than Python reads.
    return json.dumps({**fields, "response_format": held}).replace('"SCHEMA"', grammar.source).encode()


def _send(
    site: Site, number: int, requests: dict[str, bytes], is_over: threading.Event, answers: list[Answer]
) -> None:
    """Sends all requests in turns; `number`: which part of them first."""
    sender = Caller(site, 1)
    names = list(requests)
    place = number * len(names) // SENDERS
    due = time.monotonic()
    while not is_over.wait(max(0.0, due - time.monotonic())):
        due = max(due, time.monotonic()) + PACE_S
        name = names[place % len(names)]
        place += 1
        with suppress(httpx.TransportError):  # a body over the limit ends the connection
            answers.append((name, *sender.ask(requests[name])))


def _processes(site: Site) -> dict[str, int]:
    [api], [engine] = site.apis, site.engines
    children = Path(f"/proc/{api.pid}/task/{api.pid}/children").read_text().split()
    checkers = [
        int(child) for child in children if b"fork_server" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    return {"api": api.pid, "engine": engine.pid, "fork server": checkers[0]}


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def _ms(seconds: list[float]) -> dict[str, float]:
    return {f"p{share}": round(1e3 * float(np.percentile(seconds, share)), 2) for share in (50, 90, 99)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--repeats", type=int, default=100, help="first tokens of each kind")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a period beside the hostile tenant")
    asked = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="rs-gr-") as folder, running_site(Path(folder)) as site:
        site.start_engines(0.0, has_model=True)
        caller = Caller(site, 0)
        figures = first_tokens(caller, asked.repeats)
        print(figures, flush=True)
        figures["hostile"] = hostile(site, caller, asked.seconds)
        figures["placement"] = site.cores.described()
    figures["load_average"] = {"before": round(load_before, 2), "after": round(os.getloadavg()[0], 2)}
    write_report(asked.out, figures)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
