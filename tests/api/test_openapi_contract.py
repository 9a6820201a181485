"""The OpenAPI document against the server: schemathesis sends what the document allows and what it forbids.

Bounded, and the same cases at each run. `ROOTSTOCK_CONTRACT_CASES` is the number of cases for each operation
and kind, of what fits the document and of what does not.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis.asyncio
import schemathesis
import uvicorn
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from api.connections import connections_with
from db.session import Database
from tests.api.everything import Everything, everything
from tests.support.waiting import until
from tokenization.codec import TextCodec

CASES = int(os.environ.get("ROOTSTOCK_CONTRACT_CASES", "2"))
FORMATS = {
    "printable": st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=100),
    "model-pattern": st.sampled_from(["sapling", "sapling:*", "sapling:one", "sapling:one@1"]),
    "email": st.sampled_from(["a@b.example", "first.last+tag@example.com"]),
    "cidr": st.sampled_from(["10.0.0.0/8", "192.0.2.1", "2001:db8::/32"]),
    "web-origin": st.sampled_from(["https://app.example", "http://localhost:3000"]),
    "webhook-url": st.sampled_from(["https://hooks.example/", "https://hooks.example/a?b=c"]),
}
"""What the document's own formats mean."""
BEYOND_A_SCHEMA = {
    "after": "what is in the list",
    "before": "what is in the list",
    "page": "what the report has",
    "end_time": "after start_time",
    "base_model": "what is served",
    "best_of": "as n",
    "max_tokens": "0 only with echo and logprobs",
    "stream_options": "only with stream",
    "top_logprobs": "only with logprobs",
    "file": "its name",
    "limit": "by the width of buckets",
    "amount": "by the metric",
    "role_id": "instead of role",
    "logit_bias": "tokens of the vocabulary",
    "expires_after[seconds]": "digits, in a form",
    "address": "lines of printable text",
    "month": "months that have begun",
    "threshold_amount": "one of three",
    "filename": "its ending, by the purpose",
}
"""Parameters that are refused for what no schema says: their value is checked against others or the data."""
ACCOUNT = ("/v1/organization", "/v1/sla", "/v1/webhook_")


@pytest.fixture
def site(
    codec: TextCodec, tmp_path: Path, database_url: str, redis_url: str
) -> Iterator[tuple[str, Everything]]:
    """The application with one of everything behind a real server, and its URL."""
    found: list[Any] = []

    async def serve() -> None:
        database, cache = Database(database_url), redis.asyncio.Redis.from_url(redis_url)
        async with everything(codec, database, cache, redis_url, tmp_path) as made:
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


@pytest.fixture(autouse=True)
def formats() -> None:
    for name, values in FORMATS.items():
        schemathesis.openapi.format(name, values)


def failures_of(operation: Any, mode: GenerationMode, keys: dict[str, str]) -> list[str]:
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
        response = case.call(headers={"authorization": authorization}, timeout=30)
        excluded = [ignored_auth]  # of every route by a test of its own
        if response.status_code in (400, 415) and response.json()["error"]["param"] in BEYOND_A_SCHEMA:
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
    failures = [
        failure
        for operation in operations
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        for failure in failures_of(operation, mode, keys)
    ]
    assert failures == [], "\n".join(failures)
