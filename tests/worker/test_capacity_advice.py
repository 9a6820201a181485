"""The planner's advice: for the load and the engines that there are, or why there is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.planner.hardware import GPUS
from engine.planner.plan import plan_capacity
from engine.planner.shapes import PUBLISHED
from engine.planner.workload import Load, Targets
from sla.capacity.engine_loads import EngineLoad
from sla.capacity.sampling import PeakLoad
from worker.capacity_advice import advise, deployment_of, gpu_of

LLAMA = json.dumps(PUBLISHED["llama-3.1-8b"])
ENGINE = EngineLoad(
    engine_id="engine-0",
    incarnation="a",
    base="llama",
    at=0.0,
    device="cuda:0",
    memory_bandwidth=4.1e12,
    quantization="fp8",
    rows_total=256,
    slots_total=256,
    slots_resident=200,
    base_config=LLAMA,
)
BUSY = PeakLoad(20.0, 161.0, 338.0)


def test_a_gpu_is_known_by_its_memory() -> None:
    assert gpu_of(ENGINE) is GPUS["h200"]
    slower = EngineLoad(
        **{name: getattr(ENGINE, name) for name in ENGINE.__struct_fields__} | {"memory_bandwidth": 2.9e12}
    )
    assert gpu_of(slower) is GPUS["h100"]


def test_it_is_what_the_command_plans() -> None:
    advice = advise([ENGINE, ENGINE], BUSY)
    plan = plan_capacity(
        deployment_of(ENGINE, GPUS["h200"], 200), Load(20.0, 161.0, 338.0), Targets(), 2, None
    )
    assert advice.why_not == ""
    assert advice.max_requests_per_s == plan.max_requests_per_s
    assert advice.max_output_tokens_per_s == pytest.approx(plan.max_requests_per_s * 338)
    assert advice.replicas == 2
    replicas = [option.replicas for option in advice.options]
    assert [option.factor for option in advice.options] == [1.0, 1.5, 2.0]
    assert None not in replicas
    assert replicas == sorted(replicas)  # type: ignore[type-var]


def test_too_much_load_says_what_is_missed_and_what_helps() -> None:
    advice = advise([ENGINE], PeakLoad(200.0, 161.0, 338.0))
    assert advice.misses
    assert advice.utilisation is not None
    assert advice.utilisation > 1
    assert any("Another replica" in one for one in advice.helps)


@pytest.mark.parametrize(
    ("engine", "peak", "why"),
    [
        ({"device": "cpu"}, BUSY, "this base runs on cpu"),
        ({"memory_bandwidth": 1e12}, BUSY, "this base runs on cuda:0"),
        ({"memory_bandwidth": 0.0}, BUSY, "this base runs on cuda:0"),
        ({}, None, "no load"),
        ({}, PeakLoad(0.0, 1.0, 1.0), "no load"),
        ({"base_config": "{}"}, BUSY, "."),
        ({"base_config": "no JSON"}, BUSY, "."),
        ({}, PeakLoad(1.0, 200_000.0, 1.0), "exceed the model's context"),
    ],
)
def test_without_a_plan_it_says_why(engine: dict[str, Any], peak: PeakLoad | None, why: str) -> None:
    fields = {name: getattr(ENGINE, name) for name in ENGINE.__struct_fields__} | engine
    advice = advise([EngineLoad(**fields)], peak)
    assert why in advice.why_not
    assert advice.max_requests_per_s is None
