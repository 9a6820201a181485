"""The OpenAPI document against the server: schemathesis sends what the document allows and what it forbids.

The same cases at each run; `ROOTSTOCK_TEST_EXAMPLES=thorough` sends ten times as many. Bodies of
successes, errors and events are compared with the document's schemas, too.
"""

from __future__ import annotations

import asyncio
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
from tests.support.examples import examples
from tests.support.waiting import until
from tokenization.codec import TextCodec

CASES = examples(2)
"""For each operation and kind: of what fits the document and of what does not."""
FORMATS = {
    "printable": st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=100),
    "model-pattern": st.sampled_from(["sapling", "sapling:*", "sapling:one", "sapling:one@1"]),
    "email": st.sampled_from(["a@b.example", "first.last+tag@example.com"]),
    "cidr": st.sampled_from(["10.0.0.0/8", "192.0.2.1", "2001:db8::/32"]),
    "web-origin": st.sampled_from(["https://app.example", "http://localhost:3000"]),
    "printable-lines": st.sampled_from(["1 Main Street\nSpringfield"]),
    "webhook-url": st.sampled_from(["https://hooks.example/", "https://hooks.example/a?b=c"]),
}
"""What the document's own formats mean."""
BEYOND_A_SCHEMA = {
    "after": "must be in the list",
    "before": "must be in the list",
    "page": "must be a page of this very report",
    "end_time": "is compared with start_time, another parameter",
    "limit": "of a report is bounded by bucket_width, another parameter",
    "month": "must have begun",
    "base_model": "must be the one that is served",
    "version": "is compared with the one in the model's name",
    "best_of": "is compared with n",
    "logit_bias": "takes tokens of the vocabulary",
    "file": "has its name outside of the form's schema",
    "filename": "is no path and has no invisible characters, which patterns cannot name portably",
    "expires_after[seconds]": "is digits in a form, where a schema's integer may be 3600.0",
    "amount": "is bounded by the metric",
}
"""Parameters that are refused for what no schema says: each with why."""
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
