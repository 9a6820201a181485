"""The OpenAPI document against the server: schemathesis sends what the document allows and what it forbids.

The same cases at each run; `ROOTSTOCK_TEST_EXAMPLES=thorough` sends ten times as many. Bodies of
successes, errors and events are compared with the document's schemas, too. The stateful phase, which follows
the document's links from what one request created to the next, runs as its users run it: by the command line.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis.asyncio
import requests
import schemathesis
import uvicorn
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from api.connections import connections_with
from db.session import Database
from tests.api.everything import Everything, open_everything
from tests.support.beyond_schema import is_beyond_a_schema
from tests.support.databases import SharedDatabase
from tests.support.examples import examples
from tests.support.waiting import until
from tokenization.codec import TextCodec

CASES = examples(2)
"""For each operation and kind: of what fits the document and of what does not."""
SCENARIOS = examples(20)
"""Sequences of requests for each key."""
ROOT = Path(__file__).resolve().parents[2]
ACCOUNT = ("/v1/organization", "/v1/sla", "/v1/webhook_")


@pytest.fixture
def site(
    codec: TextCodec, tmp_path: Path, shared_database: SharedDatabase, database_url: str, redis_url: str
) -> Iterator[tuple[str, Everything]]:
    """The application with one of everything behind a real server, and its URL."""
    found: list[Any] = []

    async def serve() -> None:
        database, cache = Database(database_url), redis.asyncio.Redis.from_url(redis_url)
        async with open_everything(codec, shared_database, database, cache, redis_url, tmp_path) as made:
            config = uvicorn.Config(
                made.app,
                port=0,
                http=connections_with(60.0, 10.0),
                loop="uvloop",
                lifespan="off",
                access_log=False,
                log_config=None,
            )
            server = uvicorn.Server(config)
            found.extend((server, made))
            await server.serve()
        await cache.aclose()
        await database.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    until(lambda: found and found[0].started, 60)
    server, made = found
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}", made
    finally:
        server.should_exit = True
        thread.join(20)


def failures_of(
    operation: Any, mode: GenerationMode, keys: dict[str, str], session: requests.Session
) -> list[str]:
    """What schemathesis has against the answers to `CASES` requests of the operation."""
    found: dict[str, str] = {}
    authorization = keys["admin" if operation.path.startswith(ACCOUNT) else "inference"]

    @hypothesis.seed(1)
    @hypothesis.settings(
        max_examples=CASES,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(operation.as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case) -> None:
        response = case.call(session=session, headers={"authorization": authorization}, timeout=30)
        excluded = [ignored_auth]  # of every route by a test of its own
        if is_beyond_a_schema(case, response):
            excluded.append(positive_data_acceptance)
        try:
            case.validate_response(response, excluded_checks=excluded)
        except FailureGroup as group:
            for failure in group.exceptions:
                answer = f"{response.status_code} {response.content[:400]!r}"
                found.setdefault(failure.title, f"{answer} to {case.as_curl_command()[:500]}")

    try:
        send()
    except hypothesis.errors.Unsatisfiable:
        assert mode == GenerationMode.NEGATIVE, operation.label
    return [f"{operation.label}: {title}: {text}" for title, text in found.items()]


def test_the_server_does_what_the_document_says(site: tuple[str, Everything]) -> None:
    url, made = site
    keys = {kind: getattr(made.ours, kind).headers["authorization"] for kind in ("admin", "inference")}
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 100
    with requests.Session() as session:
        failures = [
            failure
            for operation in operations
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
            for failure in failures_of(operation, mode, keys, session)
        ]
    assert failures == [], "\n".join(failures)


@pytest.mark.parametrize("kind", ["admin", "inference"])
def test_what_is_created_can_be_used_as_the_links_say(
    site: tuple[str, Everything], kind: str, tmp_path: Path
) -> None:
    url, made = site
    authorization = getattr(made.ours, kind).headers["authorization"]
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"),
        *("--header", f"Authorization: {authorization}", "--checks", "all", "--phases", "stateful"),
        *("--max-examples", str(SCENARIOS), "--seed", "1", "--generation-database", "none", "--no-color"),
    ]
    environment = os.environ | {
        "SCHEMATHESIS_HOOKS": "tests.support.beyond_schema",
        "PYTHONPATH": str(ROOT),
    }
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
