"""Audits the ledger after a chaos run against what clients received and what a witness of the engines
recorded.

For each request: tokens handed to the network <= tokens in the ledger <= tokens generated, and exactly what
the engine told the client where it had the time to. One row each, none for requests that never ran. Sums
equal rows, and the dead-letter queue is empty.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import redis.asyncio
from sqlalchemy import make_url

from billing.reconciliation.service import ReconciliationService
from cli.local.postgres import serving_url
from db.session import Database

_PART = re.compile(r"(.+-[0-9a-f]{32})-[0-9]{1,4}")
SHOWN = 50
"""Differences that are listed in full."""


@dataclass(frozen=True)
class Row:
    """A request in the ledger."""

    tenant_id: str
    prompt: int
    cached: int
    completion: int
    finish_reason: str | None


@dataclass
class Witnessed:
    """What all engines together generated, sent and reported, by request."""

    generated: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    told: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Witnessed:
        found = cls()
        for path in sorted(folder.iterdir()):
            for line in path.read_text().splitlines():
                kind, request_id, *counts = line.split(" ")
                if kind == "G":
                    found.generated[request_id] += int(counts[0])
                elif kind == "S":
                    found.sent[request_id] += int(counts[0])
                else:
                    prompt, cached, completion = map(int, counts)
                    found.told[request_id] = prompt, cached, completion
        return found


@dataclass
class Verdict:
    """Requests with missing tokens, those with too many, and all other differences."""

    num_requests: int = 0
    num_tokens: int = 0
    num_answers: int = 0
    num_whole_answers: int = 0
    lost: set[str] = field(default_factory=set)
    double: set[str] = field(default_factory=set)
    differences: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        return {
            "requests": self.num_requests,
            "completion_tokens": self.num_tokens,
            "answers_seen": self.num_answers,
            "answers_seen_whole": self.num_whole_answers,
            "lost": len(self.lost),
            "double": len(self.double),
            "differences": len(self.differences),
            "shown_differences": self.differences[:SHOWN],
        }

    def is_clean(self) -> bool:
        return not (self.lost or self.double or self.differences)


def audit(owner_url: str, witnesses: Path, seen: Path) -> Verdict:
    """Once the journal has run dry."""
    verdict = Verdict()
    url = make_url(owner_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection:
        rows = _rows(connection, verdict)
        verdict.differences += _rollup_differences(connection)
    verdict.num_requests = len(rows)
    verdict.num_tokens = sum(row.completion for row in rows.values())
    _compare_with_witness(rows, Witnessed.read(witnesses), verdict)
    _compare_with_clients(rows, seen, verdict)
    return verdict


def _rows(connection: psycopg.Connection, verdict: Verdict) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    columns = "request_id, tenant_id, prompt_tokens, cached_tokens, completion_tokens, finish_reason"
    for request_id, *fields in connection.execute(f"SELECT {columns} FROM usage_records".encode()):
        if request_id in rows:
            verdict.double.add(request_id)
            verdict.differences.append(f"{request_id} has two rows")
        rows[request_id] = Row(*fields)
        if rows[request_id].finish_reason is None:
            verdict.differences.append(f"{request_id} has no end")
    return rows


def _rollup_differences(connection: psycopg.Connection) -> list[str]:
    counts = ("prompt_tokens", "cached_tokens", "completion_tokens")
    sums = ", ".join(f"sum({name})" for name in counts)
    key = "tenant_id, key_id, model, service_tier"
    query = f"""
        WITH derived AS (
            SELECT date_trunc('minute', submitted_at, 'UTC') AS minute, {key}, count(*), {sums}
            FROM usage_records GROUP BY minute, {key}
        ), kept AS (
            SELECT minute, {key}, sum(num_requests), {sums} FROM usage_rollups GROUP BY minute, {key}
        )
        (SELECT 'not kept', derived::text FROM (TABLE derived EXCEPT TABLE kept) derived)
        UNION ALL (SELECT 'not derived', kept::text FROM (TABLE kept EXCEPT TABLE derived) kept)
    """
    return [f"rollup {which}: {row}" for which, row in connection.execute(query.encode())]


def _compare_with_witness(rows: dict[str, Row], witnessed: Witnessed, verdict: Verdict) -> None:
    for request_id, sent in witnessed.sent.items():
        row = rows.get(request_id)
        if row is None:
            verdict.lost.add(request_id)
            verdict.differences.append(f"{request_id}: {sent} tokens were sent, and it has no row")
        elif row.completion < sent:
            verdict.lost.add(request_id)
            verdict.differences.append(f"{request_id}: {sent} tokens were sent, {row.completion} are billed")
    for request_id, row in rows.items():
        generated = witnessed.generated[request_id]
        if row.completion > generated:
            verdict.double.add(request_id)
            verdict.differences.append(
                f"{request_id}: {generated} tokens were generated, {row.completion} are billed"
            )
    for request_id, told in witnessed.told.items():
        row = rows.get(request_id)
        if row is None or told != (row.prompt, row.cached, row.completion):
            (verdict.double if row and row.completion > told[2] else verdict.lost).add(request_id)
            verdict.differences.append(f"{request_id}: told {told}, billed {row}")


def _compare_with_clients(rows: dict[str, Row], seen: Path, verdict: Verdict) -> None:
    """A request that clients see as one is as many rows as it has prompts."""
    by_answer: dict[str, list[Row]] = {}
    for request_id, row in rows.items():
        part = _PART.fullmatch(request_id)
        by_answer.setdefault(part[1] if part else request_id, []).append(row)
    for line in seen.read_text().splitlines():
        answer = json.loads(line)
        verdict.num_answers += 1
        verdict.num_whole_answers += answer["ended"]
        theirs = by_answer.get(answer["id"], [])
        billed = [
            sum(row.prompt for row in theirs),
            sum(row.cached for row in theirs),
            sum(row.completion for row in theirs),
        ]
        if any(row.tenant_id != answer["tenant_id"] for row in theirs):
            verdict.differences.append(f"{answer['id']} is billed to another tenant")
        if billed[2] < answer["received"]:
            verdict.lost.add(answer["id"])
            verdict.differences.append(f"{answer['id']}: {answer['received']} received, {billed[2]} billed")
        if answer["usage"] is not None and answer["usage"] != billed:
            (verdict.double if billed[2] > answer["usage"][2] else verdict.lost).add(answer["id"])
            verdict.differences.append(f"{answer['id']}: told {answer['usage']}, billed {billed}")


def budgets_off(owner_url: str, used: dict[str, dict[str, int]]) -> list[int]:
    """By tenant, tokens that its budget's count has more than the ledger. Less, when an engine died: what it
    had counted and not delivered is billed, and a budget is charged what was delivered. `used`: by tenant and
    metric.
    """
    url = make_url(owner_url).set(drivername="postgresql").render_as_string(hide_password=False)
    query = b"SELECT tenant_id, sum(prompt_tokens + completion_tokens) FROM usage_records GROUP BY 1"
    with psycopg.connect(url) as connection:
        ledger = {tenant: int(tokens) for tenant, tokens in connection.execute(query)}
    return [counts["tokens_per_day"] - ledger.get(tenant_id, 0) for tenant_id, counts in used.items()]


async def reconciled(owner_url: str, redis_url: str, engine: str) -> list[str]:
    """What the service itself finds when it compares its books; `engine`: whose disk it asks for."""
    database = Database(serving_url(owner_url))
    client = redis.asyncio.Redis.from_url(redis_url)
    tomorrow = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    try:
        report = await ReconciliationService(database, client, engines=[engine]).reconcile(
            tomorrow - timedelta(days=2), tomorrow
        )
    finally:
        await client.aclose()
        await database.close()
    found = [f"{one.check}: {one.what}: {one.expected}, {one.found}" for one in report.differences]
    return found if report.balanced or found else [f"not compared: {report.outcomes}"]
