"""A calibration's report with figures that a test can find again, and a version that came through with it."""

from __future__ import annotations

import msgspec

from adapters.calibration.gate import Decision, Gate, Rule
from adapters.calibration.measures import (
    BASE,
    Estimate,
    Fidelity,
    Gain,
    Measures,
    ModuleError,
    SampleMeasures,
)
from adapters.calibration.report import CalibrationReport, Cost, Data, Subject
from adapters.calibration.samples import LeftOut
from adapters.inspection import Inspection
from adapters.inspection.findings import ModuleFacts
from adapters.jobs.service import succeed
from adapters.object_keys import report_prefix
from adapters.submission import SubmittedVersion
from adapters.versions import finish_ready, note_calibrated, note_inspected
from tests.support.onboarding import BASE_DIGEST, Scene

DTYPE = "bfloat16"


def report_of(made: SubmittedVersion, reason: str = "bf16, the only one available") -> CalibrationReport:
    half = Estimate(0.5, 0.4, 0.6)
    whole = Estimate(1.0, 0.9, 1.1)
    agreement = Estimate(0.98, 0.97, 0.99)
    fidelity = Fidelity(half, 1.6, Estimate(0.01, 0.0, 0.02), agreement)
    samples = [
        SampleMeasures(
            line, 10, 0.4 + line / 100, 1.0, {BASE: 1.0, DTYPE: 0.5 + line / 100}, {BASE: 1.0, DTYPE: 0.9}
        )
        for line in (3, 17)
    ]
    message = "On your samples the adapter is 0.500 nats per token better than the base alone."
    return CalibrationReport(
        subject=Subject(
            f"sapling:{made.adapter.name}@1",
            made.adapter.id,
            1,
            BASE_DIGEST,
            "int8",
            "cpu",
            "test",
            {DTYPE: "1" * 64},
        ),
        data=Data(
            "tenant", "d" * 64, 3, 2, 40, 20, [LeftOut(17, "too long, cut")], [LeftOut(2, "no answer")]
        ),
        gate=Gate(),
        decision=Decision(True, DTYPE, reason, [Rule("gain", True, 0.5, 0.0, message)]),
        measures=Measures(
            num_samples=2,
            num_tokens=20,
            nll_reference=half,
            nll_reference_base=whole,
            reference_gain=half,
            doubling_gain=None,
            fidelity={BASE: fidelity, DTYPE: fidelity},
            gain={DTYPE: Gain(half, 2.7, 1.6)},
            comparison=None,
            samples=samples,
        ),
        modules=[
            ModuleError(layer, name, 0.1 + layer / 10, {DTYPE: 0.001})
            for layer in range(2)
            for name in ("q_proj", "v_proj")
        ],
        cost=Cost(0.5, 0.7, 1000, False),
    )


async def finish_with_report(place: Scene, made: SubmittedVersion, report: CalibrationReport) -> None:
    """What a worker does with a version that passes."""
    assert made.job_id is not None
    lease = await place.lease(made.job_id)
    await place.pack(lease, "1")
    facts = Inspection(
        {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
        4,
        1000,
        8,
        [ModuleFacts("model.layers.0.self_attn.q_proj", 8, 2.0, "F32", 1.0, 2.0, 3.0)],
    )
    prefix = report_prefix(made.adapter.tenant_id, made.adapter.id, made.job_id)
    await place.store.put(f"{prefix}report.json", report.to_json())
    async with lease.write() as held:
        await note_inspected(held.session, held.job, msgspec.to_builtins(facts))
        await note_calibrated(held.session, held.job, report.summary(), DTYPE)
        await finish_ready(held.session, held.job, place.onboarding.submission._announcer)
        succeed(held.session, held.job, report.summary())
