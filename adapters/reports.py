"""Reads the stored report of a calibration: its document, its page, its charts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from adapters.jobs.errors import ReportNotFound
from adapters.jobs.models import Job
from adapters.object_keys import report_prefix
from adapters.storage import ObjectNotFound, ObjectStore

_CHART = re.compile(r"[a-z0-9][a-z0-9_-]{0,80}\.svg")
_TYPES = {"json": "application/json", "html": "text/html; charset=utf-8", "svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Report:
    """One document of a report."""

    content: bytes
    media_type: str


class ReportReader:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def read(self, job: Job, name: str) -> Report:
        """Returns `report.json`, `report.html`, or a chart such as `sample-nll.svg`. Raises ReportNotFound,
        StorageUnavailable.
        """
        if name not in ("report.json", "report.html") and _CHART.fullmatch(name) is None:
            raise ReportNotFound(job.id)
        key = f"{report_prefix(job.tenant_id, job.adapter_id, job.id)}{name}"
        try:
            content = b"".join([piece async for piece in self._store.get(key)])
        except ObjectNotFound:
            raise ReportNotFound(job.id) from None
        return Report(content, _TYPES[name.rpartition(".")[2]])
