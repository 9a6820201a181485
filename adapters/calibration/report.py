"""Builds a calibration's report: one JSON document, and one self-contained HTML page that shows it.

The document's form is versioned: fields are added, never renamed. It contains no text of a sample, only line
numbers of the tenant's file.
"""

from __future__ import annotations

from html import escape
from typing import Any, Literal

import msgspec

from adapters.calibration.gate import Decision, Gate
from adapters.calibration.measures import BASE, Estimate, Measures, ModuleError
from adapters.calibration.plots import NAMES, charts
from adapters.calibration.samples import LeftOut, Origin

SCHEMA = 1

_ORIGINS = {
    "tenant": "your own samples",
    "base": "the base's default samples",
    "general": "the general default samples",
}


class Subject(msgspec.Struct, frozen=True):
    """The adapter and the serving configuration that were measured."""

    model: str
    """The pinned model name."""
    adapter_id: str
    version: int
    base_digest: str
    quantization: str
    device: str
    build: str
    artifacts: dict[str, str]
    """Digest of each served artifact, by dtype."""


class Data(msgspec.Struct, frozen=True):
    """The samples it was measured with."""

    origin: Origin
    digest: str
    """SHA-256 of the samples' token ids: equal digests mean equal samples."""
    num_lines: int
    num_samples: int
    num_tokens: int
    num_scored: int
    cut: list[LeftOut]
    left_out: list[LeftOut]


class Cost(msgspec.Struct, frozen=True):
    """Time and memory of the run. Not part of the findings: another run takes another time."""

    serving_seconds: float
    reference_seconds: float
    reference_peak_bytes: int
    resumed: bool
    """Whether parts come from a run that was interrupted."""


class CalibrationReport(msgspec.Struct, frozen=True, kw_only=True):
    """A calibration's report."""

    kind: Literal["calibration.report"] = msgspec.field(default="calibration.report", name="object")
    schema_version: int = SCHEMA
    subject: Subject
    data: Data
    gate: Gate
    decision: Decision
    measures: Measures
    modules: list[ModuleError]
    cost: Cost

    def to_json(self) -> bytes:
        """Returns the document; values that are not finite become null."""
        return msgspec.json.encode(self)

    def summary(self) -> dict[str, Any]:
        """Returns the few figures that lists show for a version."""
        dtype, measures = self.decision.dtype, self.measures
        figures = {
            "ready": self.decision.ready,
            "dtype": dtype,
            "why_not": self.decision.why_not,
            "samples": self.data.origin,
            "num_samples": self.data.num_samples,
            "nll": measures.fidelity[dtype].nll.value,
            "nll_reference": measures.nll_reference.value,
            "nll_rise": measures.fidelity[dtype].nll_rise.value,
            "top1": measures.fidelity[dtype].top1.value,
            "gain": measures.gain[dtype].nats.value,
            "perplexity": measures.gain[dtype].perplexity,
            "perplexity_base": measures.gain[dtype].perplexity_base,
        }
        # As in the document, where values that are not finite are null.
        return dict(msgspec.json.decode(msgspec.json.encode(figures)))

    def to_plots(self) -> dict[str, str]:
        """Returns the charts by name, as SVG."""
        return charts(self.measures.samples, self.modules, self.decision.dtype)

    def to_html(self) -> str:
        """Returns a self-contained page, without scripts or external resources."""
        return _page(self)


def _page(report: CalibrationReport) -> str:
    subject, data, decision = report.subject, report.data, report.decision
    verdict = "Ready" if decision.ready else "Failed"
    rules = [
        [
            rule.name,
            "passed" if rule.passed else "failed",
            _number(rule.measured),
            _number(rule.bound),
            rule.message,
        ]
        for rule in decision.rules
    ]
    notes = [[str(note.line or ""), note.reason] for note in [*data.left_out, *data.cut]]
    parts = [
        f"<h1>{escape(subject.model)}</h1>",
        f'<p class="{verdict.lower()}">{verdict}</p>',
        f"<p>Served in {escape(decision.dtype_reason)}.</p>",
        _table(["rule", "", "measured", "bound", ""], rules),
        "<h2>Figures</h2>",
        f"<p>{data.num_samples} of {data.num_lines} samples ({_ORIGINS[data.origin]}), {data.num_scored} "
        f"scored tokens; base in {escape(subject.quantization)} on {escape(subject.device)}. Nats per token, "
        "with intervals of 95 %.</p>",
        _figures(report.measures),
        *report.to_plots().values(),
    ]
    if notes:
        parts += ["<h2>Left out or cut</h2>", _table(["line", "why"], notes)]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Calibration of {escape(subject.model)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _figures(measures: Measures) -> str:
    rows = [
        ["unquantized base alone", _estimate(measures.nll_reference_base), "", "", ""],
        [
            "unquantized, with the adapter",
            _estimate(measures.nll_reference),
            "",
            "",
            _estimate(measures.reference_gain),
        ],
    ]
    if measures.doubling_gain is not None:
        doubled = _estimate(measures.doubling_gain)
        rows.append(["unquantized, at twice the adapter's scale, beside its own", "", "", "", doubled])
    for name in sorted(measures.fidelity, key=lambda name: name != BASE):
        found = measures.fidelity[name]
        label = "served, base alone" if name == BASE else f"served, adapter in {NAMES[name]}"
        gain = "" if name == BASE else _estimate(measures.gain[name].nats)
        rows.append([label, _estimate(found.nll), _estimate(found.nll_rise), _estimate(found.top1), gain])
    return _table(
        ["", "right tokens", "beside its reference", "same likeliest token", "gain over the base"], rows
    )


def _estimate(value: Estimate) -> str:
    return f"{_number(value.value)} [{_number(value.low)} to {_number(value.high)}]"


def _number(value: float) -> str:
    return f"{value:.4f}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"


_STYLE = """
  :root { color-scheme: light dark; }
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
  table { border-collapse: collapse; margin: 1rem 0; font-size: 13px; }
  th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0;
    border-bottom: 1px solid #8884; }
  svg { max-width: 100%; height: auto; display: block; margin: 1.5rem 0; }
  .ready, .failed { font-size: 1.3rem; font-weight: 600; }
  .ready { color: light-dark(#15803d, #56d364); } .failed { color: light-dark(#b91c1c, #ff7b72); }
"""
