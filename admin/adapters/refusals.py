"""Finds engines that do not load a version because it is not what was signed."""

from __future__ import annotations

import asyncio
import contextlib

from redis.exceptions import RedisError

from admin.adapters.page import ENGINE_PATIENCE
from admin.operator.engines.report import EngineReport, Engines


async def refusals_of(engines: Engines, digest: str | None) -> list[tuple[str, str]]:
    """Returns the engines that refused the packed adapter last, and why; none where engines do not answer."""
    reports: list[EngineReport] = []
    with contextlib.suppress(TimeoutError, RedisError):
        reports = await asyncio.wait_for(engines.look(), ENGINE_PATIENCE)
    return [
        (report.key, refused.reason)
        for report in reports
        if report.view is not None
        for refused in report.view.refused_adapters
        if refused.digest == digest
    ]
