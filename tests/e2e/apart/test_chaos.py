"""The short form of `benchmarks.chaos`: a dozen kills, of everything, under load."""

from __future__ import annotations

import importlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import psycopg
import pytest
from sqlalchemy import make_url

from benchmarks import chaos
from benchmarks.chaos import FATES, drawn
from benchmarks.chaos_audit import audit
from cli.local.postgres import OWNER
from tests.support.journal import NOW

SEED = 7
KILLS = 12


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a socket's path has 108 bytes."""
    path = Path(tempfile.mkdtemp(prefix="rs-chaos-"))
    yield path
    shutil.rmtree(path)


@pytest.mark.timeout(400)
async def test_a_dozen_kills_lose_and_double_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sooner = {"redis": (2.0, 4.0), "postgres": (4.0, 6.0)}
    fates = {kind: replace(fate, seconds=sooner.get(kind, fate.seconds)) for kind, fate in FATES.items()}
    monkeypatch.setattr(chaos, "FATES", fates)
    figures, verdict = await chaos.run(folder, KILLS, SEED)
    assert verdict.is_clean(), figures
    assert figures["kills"] >= KILLS
    assert set(figures["kills_by_kind"]) >= {"engine", "api", "worker", "redis"}, "all had their turn"
    assert figures["requests"] > 40
    assert figures["answers_seen_whole"] > 10


def test_every_point_is_a_function_there_is() -> None:
    for fate in FATES.values():
        for where in fate.points:
            module, _, path = where.partition(":")
            owner = importlib.import_module(module)
            for part in path.split("."):
                owner = getattr(owner, part)
            assert callable(owner), where


def test_a_seed_says_who_dies_where_and_when() -> None:
    def lives(seed: int) -> list[object]:
        return [drawn(Random(f"{seed}/engine/{number}"), FATES["engine"]) for number in range(50)]

    assert lives(1) == lives(1)
    assert lives(1) != lives(2)
    points = [point for point, _ in lives(1) if point is not None]
    assert {point.after for point in points} == {True, False}
    assert 10 < len(points) < 40


# What the audit finds ---------------------------------------------------------------------------------------

ROW = "chatcmpl-" + "0" * 31
SEEN = {"tenant_id": "tnt_a", "received": 5, "usage": [10, 0, 5], "ended": True}


class Audited:
    """Three requests of five tokens, in the ledger, in its sums, and as everybody saw them."""

    def __init__(self, owner_url: str, folder: Path) -> None:
        self.owner_url = owner_url
        self.witnesses, self.seen = folder / "witnesses", folder / "seen"
        self.witnesses.mkdir()
        ids = [f"{ROW}{number}" for number in range(3)]
        lines = [f"G {one} 5\nS {one} 5\nF {one} 10 0 5\n" for one in ids]
        (self.witnesses / "0001").write_text("".join(lines))
        self.seen.write_text("".join(json.dumps({"id": one, **SEEN}) + "\n" for one in ids))
        for one in ids:
            self.add(one)
        self.execute(
            "INSERT INTO usage_rollups (tenant_id, minute, key_id, model, service_tier, num_requests, "
            "prompt_tokens, cached_tokens, completion_tokens) "
            f"VALUES ('tnt_a', date_trunc('minute', to_timestamp({NOW})), 'key_a', 'm', 'default', "
            "3, 30, 0, 15)"
        )

    def add(self, request_id: str, seconds: float = 0.0) -> None:
        self.execute(
            "INSERT INTO usage_records (submitted_at, request_id, tenant_id, key_id, model, endpoint, "
            "service_tier, prompt_tokens, cached_tokens, completion_tokens, num_choices, finish_reason, "
            f"preemptions, engine_id, recorded_at) VALUES (to_timestamp({NOW + seconds}), '{request_id}', "
            "'tnt_a', 'key_a', 'm', 'e', 'default', 10, 0, 5, 1, 'stop', 0, 'engine-0', now())"
        )

    def execute(self, statement: str) -> None:
        url = make_url(self.owner_url).set(drivername="postgresql", username=OWNER)
        with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute(statement.encode())

    def verdict(self) -> tuple[set[str], set[str], list[str]]:
        found = audit(self.owner_url, self.witnesses, self.seen)
        return found.lost, found.double, found.differences


@pytest.fixture
def audited(owner_url: str, tmp_path: Path) -> Audited:
    return Audited(owner_url, tmp_path)


def test_the_audit_finds_nothing_where_nothing_is(audited: Audited) -> None:
    assert audited.verdict() == (set(), set(), [])


def test_the_audit_finds_a_request_that_is_gone(audited: Audited) -> None:
    audited.execute(f"DELETE FROM usage_records WHERE request_id = '{ROW}1'")
    lost, double, differences = audited.verdict()
    assert (lost, double) == ({f"{ROW}1"}, set())
    assert any("rollup" in one for one in differences)


def test_the_audit_finds_tokens_that_are_gone_or_too_many(audited: Audited) -> None:
    audited.execute(f"UPDATE usage_records SET completion_tokens = 4 WHERE request_id = '{ROW}0'")
    audited.execute(f"UPDATE usage_records SET completion_tokens = 6 WHERE request_id = '{ROW}2'")
    lost, double, differences = audited.verdict()
    assert (lost, double) == ({f"{ROW}0"}, {f"{ROW}2"})
    assert not any("rollup" in one for one in differences), "the sums are the same"


def test_the_audit_finds_a_request_that_is_there_twice(audited: Audited) -> None:
    audited.add(f"{ROW}1", seconds=1)
    assert audited.verdict()[1] == {f"{ROW}1"}


def test_the_audit_finds_a_request_that_never_ran(audited: Audited) -> None:
    audited.add(f"{ROW}9")
    assert audited.verdict()[1] == {f"{ROW}9"}


def test_the_audit_finds_another_tenants_bill(audited: Audited) -> None:
    audited.execute(f"UPDATE usage_records SET tenant_id = 'tnt_b' WHERE request_id = '{ROW}0'")
    assert any("another tenant" in one for one in audited.verdict()[2])


def test_the_audit_finds_a_sum_that_is_wrong(audited: Audited) -> None:
    audited.execute("UPDATE usage_rollups SET cached_tokens = 1")
    lost, double, differences = audited.verdict()
    assert not lost | double
    assert len(differences) == 2
