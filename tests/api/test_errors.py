"""The table of errors: complete, and what it says of each class."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path
from typing import get_args

import pytest

import adapters
import api
import billing
import tenants
from adapters.errors import ModelNotFound, ModelNotReady
from api.errors import (
    ERROR_RESPONSES,
    REJECTIONS,
    ApiError,
    InvalidValue,
    MissingApiKey,
    envelope,
    headers_of,
    response_for,
)
from billing.errors import InvalidReportQuery
from engine.client import EngineError, EngineGone, RequestRejected
from engine.protocol import RejectCode
from tenants.errors import InvalidApiKey, QuotaExhausted, RateLimited
from tenants.limits.kinds import Limit, Metric

BASES = {
    "ApiError",
    "AdapterError",
    "TenantError",
    "PaymentError",
    "EngineError",
    "BillingError",
    "FileError",
    "StorageError",
    "LimitReached",
}
"""Never raised themselves."""
OF_THE_CONSOLE = {"SamlRefused"}
"""Shown on the console's pages; no route of the API raises them."""


NOT_LOADED = ("adapters.published_artifacts.", "adapters.published_bases.")
"""The API does not load them: bases by the import contracts, artifacts since only engines fetch them."""


def domain_errors() -> list[tuple[str, type[Exception]]]:
    """Every exception class of the domains' modules, but those of modules that the API may not load."""
    found = []
    for package in (adapters, api, billing, tenants):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            source = Path(module.module_finder.find_spec(module.name).origin).read_text()  # type: ignore[union-attr]
            names = [
                node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.bases
            ]
            imports_torch = "import torch" in source
            if not names or imports_torch or f"{module.name}.".startswith(NOT_LOADED):
                continue
            loaded = importlib.import_module(module.name)
            for name in names:
                value = getattr(loaded, name)
                if isinstance(value, type) and issubclass(value, Exception):
                    found.append((f"{module.name}.{name}", value))
    import engine.client

    for name, value in vars(engine.client).items():
        if isinstance(value, type) and issubclass(value, EngineError):
            found.append((f"engine.client.{name}", value))
    return found


def test_the_table_names_every_domain_error() -> None:
    errors = domain_errors()
    assert len(errors) > 20  # the search itself works
    without = BASES | OF_THE_CONSOLE
    missing = [
        name for name, value in errors if value not in ERROR_RESPONSES and value.__name__ not in without
    ]
    assert missing == []


def test_every_engine_verdict_has_a_face() -> None:
    assert set(REJECTIONS) == set(get_args(RejectCode))
    for code in get_args(RejectCode):
        assert response_for(RequestRejected(code, "why")) is REJECTIONS[code]


@pytest.mark.parametrize(
    "response", [*ERROR_RESPONSES.values(), *REJECTIONS.values()], ids=lambda response: response.code
)
def test_error_responses_keep_to_the_conventions(response: object) -> None:
    types = {
        400: "invalid_request_error",
        401: "invalid_request_error",
        403: "permission_error",
        404: "invalid_request_error",
        405: "invalid_request_error",
        408: "invalid_request_error",
        409: "conflict_error",
        413: "invalid_request_error",
        415: "invalid_request_error",
        431: "invalid_request_error",
        422: "invalid_request_error",
        429: "rate_limit_error",
        499: "invalid_request_error",
        500: "server_error",
        503: "service_unavailable_error",
    }
    assert response.type == types[response.status]
    if response.status == 503:
        assert response.retry
        assert response.retry_after
    if response.status < 500 and response.status != 408:
        assert response.retry == (
            response.code
            in (
                "rate_limit_exceeded",
                "resource_unavailable",
                "idempotency_in_progress",
                "conversation_locked",
            )
        )


def test_an_error_that_knows_when_to_ask_again_says_it_exactly() -> None:
    limit = Limit("key", "key_1", "", Metric.REQUESTS_PER_MINUTE, 60)
    waiting = headers_of(RateLimited(limit, 1.2341))
    assert (waiting["retry-after"], waiting["retry-after-ms"]) == ("2", "1235")
    assert waiting["x-should-retry"] == "true"
    never = headers_of(QuotaExhausted(limit, None))
    assert "retry-after" not in never
    assert never["x-should-retry"] == "false"


def test_one_body_for_every_bad_key() -> None:
    assert envelope(MissingApiKey("no header")) == envelope(InvalidApiKey())
    assert headers_of(InvalidApiKey())["www-authenticate"] == "Bearer"


def test_envelopes_carry_the_data_of_the_error() -> None:
    assert envelope(InvalidValue("n is bad", "n")) == {
        "error": {
            "message": "n is bad",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_value",
        }
    }
    assert envelope(ModelNotFound("x"))["error"]["param"] == "model"
    assert envelope(ModelNotReady("x", "packing"))["error"]["code"] == "not_ready"
    assert envelope(InvalidReportQuery("limit", "too many"))["error"]["param"] == "limit"


def test_addresses_and_unknown_errors_stay_inside() -> None:
    assert "ipc" not in str(envelope(EngineGone("engine at ipc:///run/x is gone")))
    assert "/var" not in str(envelope(RequestRejected("adapter_unavailable", "no file /var/x")))
    for reason in ("signature: base.json: its SHA-256 is 1", "digest: content is 1, expected 2"):
        refused = RequestRejected("adapter_unavailable", f"packed adapter rejected: {reason}")
        assert "not what was signed" in str(envelope(refused))
    unknown = envelope(RuntimeError("password=hunter2"))
    assert unknown["error"]["code"] == "internal_error"
    assert "hunter2" not in str(unknown)


def test_a_subclass_is_shown_as_its_parent() -> None:
    class TooOdd(InvalidValue):
        pass

    assert response_for(TooOdd("odd")) is ERROR_RESPONSES[InvalidValue]
    assert issubclass(TooOdd, ApiError)
