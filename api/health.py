"""Serves liveness, readiness and metrics: /livez, /readyz, /metrics. None needs a key.

/health is the same as /readyz, under the name that vLLM uses and that benchmarks and load balancers expect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

import msgspec
import structlog
from fastapi import Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.openapi.routing import Router, answers, reference
from api.pools import Pools
from api.services import Check, Services, services_of
from telemetry.tasks import gather_all

CHECK_TIMEOUT = 2.0
"""Seconds after which a check without an answer counts as not ready."""
NOT_CONNECTED = "not connected to a serving engine"
_ENGINE_OF = "engine "

router = Router(tags=["Operations"])
log = structlog.get_logger(__name__)


class Alive(TypedDict):
    """The process runs."""

    status: Literal["ok"]


class Readiness(TypedDict):
    """Whether requests can be served."""

    status: Literal["ready", "not ready"]
    not_ready: list[str]
    """What is not ready."""
    checks: dict[str, str]
    """By what is checked, `ok` or why it is not ready."""


_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {
        "description": "Not ready; `not_ready` says what is not.",
        "content": {"application/json": {"schema": reference("Readiness")}},
    }
}


@router.get("/livez", operation_id="livez", response_model=None)
@answers(Alive)
async def livez() -> Response:
    """Answers while the process runs."""
    return Response(b'{"status":"ok"}', media_type="application/json")


@router.get("/health", operation_id="health", response_model=None, responses=_NOT_READY)
@router.get("/readyz", operation_id="readyz", response_model=None, responses=_NOT_READY)
@answers(Readiness)
async def readyz(request: Request) -> Response:
    """Answers with 200 when everything that a request needs is there, else with 503 and the names of what is
    not. Of several base models, one with an engine is enough; those without are named.
    """
    checks = await reasons_not_ready(services_of(request))
    not_ready = [name for name, reason in checks.items() if reason is not None]
    is_ready = can_serve(services_of(request), checks)
    body: Readiness = {
        "status": "ready" if is_ready else "not ready",
        "not_ready": not_ready,
        "checks": {name: reason or "ok" for name, reason in checks.items()},
    }
    return Response(
        msgspec.json.encode(body), status_code=200 if is_ready else 503, media_type="application/json"
    )


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> Response:
    """Returns metrics in the Prometheus text format."""
    services = services_of(request)
    services.deferred_work.run()
    for collector in services.polled:
        await collector.refresh()
    body = await asyncio.to_thread(generate_latest, services.metrics.registry)
    return Response(body, media_type=CONTENT_TYPE_LATEST)


router.add_api_route("/livez", livez, methods=["HEAD"], include_in_schema=False)
router.add_api_route("/readyz", readyz, methods=["HEAD"], include_in_schema=False)
router.add_api_route("/health", readyz, methods=["HEAD"], include_in_schema=False)
router.add_api_route("/metrics", metrics, methods=["HEAD"], include_in_schema=False)


def can_serve(services: Services, reasons: Mapping[str, str | None]) -> bool:
    """Returns whether requests can be served: with several bases, those to the bases whose engines serve."""
    common = (reason for name, reason in reasons.items() if not name.startswith(_ENGINE_OF))
    return services.pools.ready and not any(common)


def is_of_engines(name: str) -> bool:
    """Whether a check is of engines or what they serve, and not of this process and its stores."""
    return name in ("engine", "base") or name.startswith(_ENGINE_OF)


async def reasons_not_ready(services: Services) -> dict[str, str | None]:
    """Runs every check; returns why each fails, by its name, and None for those that pass."""
    names = list(services.checks)
    reasons = await gather_all(*(_run(name, services.checks[name]) for name in names))
    return {**_engines(services.pools), **dict(zip(names, reasons, strict=True))}


def _engines(pools: Pools) -> dict[str, str | None]:
    """Returns why requests to a base cannot be served: `engine` for the only one, `engine BASE` for each of
    several.
    """
    if len(pools) == 1:
        return {"engine": None if pools.ready else NOT_CONNECTED}
    return {
        _ENGINE_OF + pool.name: (
            None if pool.engine.ready else "; ".join(pool.engine.left_out) or NOT_CONNECTED
        )
        for pool in pools
    }


async def _run(name: str, check: Check) -> str | None:
    """Returns why the check fails, briefly and without addresses; None if it passes."""
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            return await check()
    except TimeoutError:
        return f"no answer within {CHECK_TIMEOUT:g} s"
    except Exception as error:  # noqa: BLE001 - whatever a check raises means not ready
        log.debug("not ready", check=name, error=str(error))
        return type(error).__name__
