"""Gathers the page of one adapter version: inspection, calibration report and plots.

Verdicts and their wording are the report's; this module puts them into tables.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from adapters.calibration.measures import BASE, ModuleError, SampleMeasures
from adapters.calibration.plots import charts
from adapters.catalogue import AdapterCatalogue
from adapters.jobs.errors import ReportNotFound
from adapters.jobs.models import Job
from adapters.jobs.repository import OPEN
from adapters.jobs.service import JobService
from adapters.model_names import ModelName
from adapters.models import Adapter, AdapterVersion, VersionState
from adapters.regression import Regression, regression_of
from adapters.reports import ReportReader
from admin import formatting
from admin.adapters.page import MAX_JOBS, version_state
from admin.adapters.refusals import refusals_of
from admin.adapters.work import Work, work_of
from admin.badge import Badge
from admin.operator.engines.report import Engines
from telemetry.svg import without_style

MAX_ROWS = 400
"""Of a table: a report on more samples is read as the document."""
_ORIGINS = {
    "tenant": "Your samples",
    "base": "Default samples of the base model",
    "general": "General default samples",
}
_RULES = {
    "gain": "Improves on the base model",
    "loss": "Stays close to the base model",
    "scale": "Scale matches training",
    "nll_rise": "Likelihood preserved after quantization",
    "top1": "Agrees with the unquantized model",
}


@dataclass(frozen=True)
class RuleRow:
    title: str
    passed: bool
    message: str
    measured: str
    bound: str


@dataclass(frozen=True)
class Table:
    caption: str
    head: list[str]
    rows: list[list[str]]
    num_left_out: int = 0


@dataclass(frozen=True)
class Plots:
    """Charts, and the same figures as a table for screen readers."""

    title: str
    svgs: list[str]
    table: Table


@dataclass(frozen=True)
class ReportView:
    ready: bool
    dtype: str
    dtype_reason: str
    rules: list[RuleRow]
    figures: Table
    plots: list[Plots]
    data: list[tuple[str, str]]
    notes: Table | None
    """Lines of the samples that were left out or cut."""
    cost: list[tuple[str, str]]


@dataclass(frozen=True)
class VersionDetail:
    adapter: Adapter
    version: AdapterVersion
    model: str
    state: Badge
    is_active: bool
    may_activate: bool
    regression: Regression | None
    """Beside the active version."""
    may_disable: bool
    work: Work | None
    report: ReportView | None
    facts: list[tuple[str, str]]
    """Of the inspection."""
    modules: Table | None
    warnings: list[str]
    sources: list[tuple[str, str, int, str]]
    """File, the name it came under, size, SHA-256."""
    origin: list[tuple[str, str]]
    """Where they were imported from."""
    refusals: list[tuple[str, str]]
    """Engines that do not load it because it is not what was signed, and why."""
    uploader: str | None
    """Name of the organization's key that the upload was signed with."""


class VersionPage:
    """Gathers the page."""

    def __init__(
        self, catalogue: AdapterCatalogue, jobs: JobService, reports: ReportReader, engines: Engines
    ) -> None:
        self._engines = engines
        self._catalogue = catalogue
        self._jobs = jobs
        self._reports = reports

    async def gather(self, tenant_id: str, adapter: str, number: int) -> VersionDetail:
        """Raises AdapterNotFound, VersionNotFound, StorageUnavailable."""
        row, version = await self._catalogue.version(tenant_id, adapter, number)
        jobs = await self._jobs_of(tenant_id, row, number)
        document = await self._document(jobs)
        report = None if document is None else await asyncio.to_thread(report_view, document)
        active = row.active_version == version.version
        inspection = version.inspection or {}
        works = [work_of(job) for job in jobs if job.status in OPEN]
        return VersionDetail(
            adapter=row,
            version=version,
            model=str(ModelName(row.base, row.name, version.version)),
            state=version_state(version),
            is_active=active,
            may_activate=version.state == VersionState.READY and not active,
            regression=await self._regression(tenant_id, row, version),
            may_disable=version.state == VersionState.READY,
            work=works[0] if works else None,
            report=report,
            facts=_facts(inspection),
            modules=_modules(inspection.get("modules", [])),
            warnings=list(inspection.get("warnings", [])),
            sources=[
                (name, one.get("filename", name), one["size"], one["sha256"])
                for name, one in sorted(version.sources.items())
            ],
            origin=_origin(version.origin or {}),
            refusals=await refusals_of(self._engines, version.digest),
            uploader=(version.uploader_key or {}).get("name"),
        )

    async def regression(self, tenant_id: str, adapter: str, number: int) -> Regression | None:
        """What is lost if this version replaces the active one. Raises AdapterNotFound, VersionNotFound."""
        row, version = await self._catalogue.version(tenant_id, adapter, number)
        return await self._regression(tenant_id, row, version)

    async def _regression(self, tenant_id: str, row: Adapter, version: AdapterVersion) -> Regression | None:
        if row.active_version is None or row.active_version == version.version:
            return None
        _, active = await self._catalogue.version(tenant_id, row.id, row.active_version)
        return regression_of(version, active)

    async def document(self, tenant_id: str, adapter: str, number: int) -> bytes | None:
        """The report as it is stored. Raises as `gather` does."""
        row, _ = await self._catalogue.version(tenant_id, adapter, number)
        return await self._document(await self._jobs_of(tenant_id, row, number))

    async def _jobs_of(self, tenant_id: str, adapter: Adapter, number: int) -> list[Job]:
        jobs, _ = await self._jobs.page(tenant_id, limit=MAX_JOBS, adapter_id=adapter.id)
        return [job for job in jobs if job.version == number]

    async def _document(self, jobs: Iterable[Job]) -> bytes | None:
        """Of the newest job that has one."""
        for job in jobs:
            if job.result is not None:
                with contextlib.suppress(ReportNotFound):
                    return (await self._reports.read(job, "report.json")).content
        return None


def report_view(document: bytes) -> ReportView:
    """The document as tables and charts."""
    report = msgspec.json.decode(document)
    decision, measures, data = report["decision"], report["measures"], report["data"]
    samples = [_sample(one) for one in measures["samples"]]
    modules = [_module(one) for one in report["modules"]]
    notes = [[str(line or formatting.NOTHING), reason] for line, reason in data["left_out"] + data["cut"]]
    cost = report["cost"]
    return ReportView(
        ready=decision["ready"],
        dtype=formatting.dtype(decision["dtype"]),
        dtype_reason=decision["dtype_reason"],
        rules=[_rule(rule, data["origin"]) for rule in decision["rules"]],
        figures=_figures(measures),
        plots=_plots(samples, modules, decision["dtype"]),
        data=[
            ("Measured on", _ORIGINS.get(data["origin"], data["origin"])),
            ("Samples", f"{data['num_samples']:,} of {data['num_lines']:,}"),
            ("Scored tokens", f"{data['num_scored']:,}"),
            ("Base", f"{report['subject']['quantization']} on {report['subject']['device']}"),
        ],
        notes=_cut(Table("Skipped or truncated samples", ["Line", "Reason"], notes)) if notes else None,
        cost=[
            ("Engine time", f"{cost['serving_seconds']:.1f} s"),
            ("Unquantized reference time", f"{cost['reference_seconds']:.1f} s"),
        ],
    )


def _rule(rule: Mapping[str, Any], origin: str) -> RuleRow:
    # Samples that are not the tenant's own allow a loss: passing there does not mean an improvement.
    name = "loss" if rule["name"] == "gain" and origin != "tenant" else rule["name"]
    as_text = formatting.percent if rule["name"] == "top1" else formatting.figure
    return RuleRow(
        title=_RULES.get(name, name),
        passed=rule["passed"],
        message=rule["message"],
        measured=as_text(rule["measured"]),
        bound=as_text(rule["bound"]),
    )


def _figures(measures: Mapping[str, Any]) -> Table:
    rows = [
        ["Unquantized base model", _estimate(measures["nll_reference_base"]), *[formatting.NOTHING] * 3],
        [
            "Unquantized with adapter",
            _estimate(measures["nll_reference"]),
            formatting.NOTHING,
            formatting.NOTHING,
            _estimate(measures["reference_gain"]),
        ],
    ]
    for name in sorted(measures["fidelity"], key=lambda name: name != BASE):
        found = measures["fidelity"][name]
        gain = formatting.NOTHING if name == BASE else _estimate(measures["gain"][name]["nats"])
        label = "Served base model" if name == BASE else f"Served with adapter in {formatting.dtype(name)}"
        rows.append(
            [
                label,
                _estimate(found["nll"]),
                _estimate(found["nll_rise"]),
                _estimate(found["top1"], formatting.percent),
                gain,
            ]
        )
    head = ["Model", "Nats per token", "Change from reference", "Top-1 agreement", "Gain over base model"]
    return Table("Results with 95 % confidence intervals", head, rows)


def _estimate(estimate: Mapping[str, Any], as_text: Any = formatting.figure) -> str:
    return f"{as_text(estimate['value'])} [{as_text(estimate['low'])} to {as_text(estimate['high'])}]"


def _plots(samples: Sequence[SampleMeasures], modules: Sequence[ModuleError], dtype: str) -> list[Plots]:
    drawn = {name: without_style(svg) for name, svg in charts(samples, modules, dtype).items()}
    by_layer = [svg for name, svg in drawn.items() if name.startswith("layer")]
    by_sample = [svg for name, svg in drawn.items() if not name.startswith("layer")]
    plots = [
        Plots("By layer", by_layer, _layer_table(modules)),
        Plots("By sample", by_sample, _sample_table(samples, dtype)),
    ]
    return [one for one in plots if one.svgs]


def _layer_table(modules: Sequence[ModuleError]) -> Table:
    dtypes = sorted({dtype for module in modules for dtype in module.errors})
    head = ["Layer", "Module", "Share", *(f"Error in {formatting.dtype(dtype)}" for dtype in dtypes)]
    rows = [
        [
            str(module.layer),
            module.module,
            formatting.short(module.share),
            *(formatting.short(module.errors.get(dtype)) for dtype in dtypes),
        ]
        for module in modules
    ]
    return _cut(Table("By layer and module", head, rows))


def _sample_table(samples: Sequence[SampleMeasures], dtype: str) -> Table:
    head = [
        "Line",
        "Tokens",
        "Base model",
        "Unquantized",
        f"Served in {formatting.dtype(dtype)}",
        "Agreement",
    ]
    rows = [
        [
            str(sample.line),
            str(sample.num_scored),
            formatting.figure(sample.nll[BASE]),
            formatting.figure(sample.nll_reference),
            formatting.figure(sample.nll[dtype]),
            formatting.percent(sample.top1[dtype]),
        ]
        for sample in samples
    ]
    return _cut(Table("By sample, nats per token", head, rows))


def _cut(table: Table) -> Table:
    kept = table.rows[:MAX_ROWS]
    return Table(table.caption, table.head, kept, len(table.rows) - len(kept))


def _sample(raw: Mapping[str, Any]) -> SampleMeasures:
    """With what was no finite number, null in the document, as one again."""
    return SampleMeasures(
        raw["line"],
        raw["num_scored"],
        _number(raw["nll_reference"]),
        _number(raw["nll_reference_base"]),
        {name: _number(value) for name, value in raw["nll"].items()},
        {name: _number(value) for name, value in raw["top1"].items()},
    )


def _module(raw: Mapping[str, Any]) -> ModuleError:
    errors = {name: _number(value) for name, value in raw["errors"].items()}
    return ModuleError(raw["layer"], raw["module"], _number(raw["share"]), errors)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _origin(origin: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Words for where the files were imported from."""
    shown = (
        ("Repository", "repository"),
        ("Revision", "revision"),
        ("Commit", "commit"),
        ("Location", "url"),
        ("Region", "region"),
        ("Endpoint", "endpoint"),
    )
    return [(label, str(origin[name])) for label, name in shown if origin.get(name)]


def _facts(inspection: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "config" not in inspection:
        return []
    config = inspection["config"]
    facts = [
        ("Tensors", f"{inspection['num_tensors']:,}"),
        ("Adapted modules", f"{len(inspection['modules']):,}"),
        ("Maximum rank", str(inspection["rank"])),
        ("Weights file", formatting.size(inspection["num_bytes"])),
    ]
    return facts + [
        (name, _shown(value)) for name, value in sorted(config.items()) if value not in (None, {})
    ]


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    return msgspec.json.encode(value).decode()


def _modules(modules: Sequence[Mapping[str, Any]]) -> Table | None:
    if not modules:
        return None
    head = ["Module", "Rank", "Scale", "Stored as", "|A|", "|B|", "|scale · BA|"]
    rows = [
        [
            one["path"],
            str(one["rank"]),
            formatting.short(one["scale"]),
            one["dtype"],
            formatting.short(one.get("norm_a")),
            formatting.short(one.get("norm_b")),
            formatting.short(one.get("norm_delta")),
        ]
        for one in modules
    ]
    return _cut(Table("Adapted modules", head, rows))
