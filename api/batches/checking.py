"""Checks every line of a batch's input before any of them runs.

Runs on the event loop in slices of milliseconds with pauses as long, so that it takes at most half of the
loop's time; memory stays at one block of the file and a digest per line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TypedDict

from adapters.errors import ModelNotFound, ModelNotReady
from adapters.model_names import InvalidModelName
from api.batches.endpoints import ENDPOINTS
from api.batches.lines import decode_body, decode_line
from api.errors import ApiError, InsufficientPermissions, response_for
from api.openai.model_access import permitted_model
from api.services import Services
from batches.input import InputLine
from tenants.context import TenantContext

MAX_LINES = 50_000
MAX_LINE_BYTES = 4 * 1024 * 1024
MAX_MODELS = 1_000
"""Different models in one batch."""
MAX_ERRORS = 100
"""After which the rest of the file is not checked."""
SLICE = 0.002
"""Seconds of checking before a pause."""


class BatchErrorObject(TypedDict):
    """Something wrong with a batch's input file, or why the batch was stopped."""

    code: str
    line: int | None
    """Its number in the input file, from 1."""
    message: str
    param: str | None


@dataclass
class CheckedInput:
    """What the check of a file found."""

    total: int = 0
    models: dict[str, int] = field(default_factory=dict)
    """The first line that names each model."""
    errors: list[BatchErrorObject] = field(default_factory=list)


async def check_lines(lines: AsyncIterator[InputLine], url: str) -> CheckedInput:
    """Checks the lines for the endpoint `url`. Raises what reading them does."""
    checked = CheckedInput()
    seen: set[bytes] = set()
    began = time.perf_counter()
    async for number, content in lines:
        if checked.total == MAX_LINES:
            checked.errors.append(
                batch_error("too_many_lines", f"The file has more than {MAX_LINES} lines.", number)
            )
            break
        checked.total += 1
        if content is None:
            message = f"The line is longer than {MAX_LINE_BYTES} bytes."
            checked.errors.append(batch_error("line_too_long", message, number))
        else:
            _check_line(content, number, url, seen, checked)
        if len(checked.errors) >= MAX_ERRORS:
            break
        if (spent := time.perf_counter() - began) > SLICE:
            await asyncio.sleep(spent)
            began = time.perf_counter()
    if not checked.total:
        checked.errors.append(batch_error("empty_file", "The file has no lines.", None))
    return checked


def _check_line(content: bytes, number: int, url: str, seen: set[bytes], checked: CheckedInput) -> None:
    try:
        line = decode_line(content, url)
        body = decode_body(line, ENDPOINTS[url])
    except ApiError as error:
        checked.errors.append(batch_error(response_for(error).code, error.message, number, error.param))
        return
    digest = blake2b(line.custom_id.encode(), digest_size=16).digest()
    if digest in seen:
        message = f"An earlier line has the custom_id '{line.custom_id[:100]}'; give each line its own."
        checked.errors.append(batch_error("duplicate_custom_id", message, number, "custom_id"))
    seen.add(digest)
    if body.model not in checked.models:
        if len(checked.models) == MAX_MODELS:
            message = f"The lines name more than {MAX_MODELS} models."
            checked.errors.append(batch_error("too_many_models", message, number, "body.model"))
        checked.models[body.model] = number


async def check_models(
    services: Services, caller: TenantContext, models: dict[str, int]
) -> list[BatchErrorObject]:
    """Returns an error for each model, with the line that names it first, that the caller may not use, or
    that cannot be used now. Raises DatabaseUnavailable.
    """
    errors = []
    for name, number in models.items():
        try:
            await permitted_model(services, caller, name)
        except (ModelNotFound, ModelNotReady, InvalidModelName, InsufficientPermissions) as error:
            errors.append(batch_error(response_for(error).code, str(error), number, "body.model"))
    return errors[:MAX_ERRORS]


def batch_error(code: str, message: str, line: int | None, param: str | None = None) -> BatchErrorObject:
    """Returns an entry of a batch's `errors`."""
    return {"code": code, "line": line, "message": message, "param": param}
