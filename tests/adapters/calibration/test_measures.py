"""The arithmetic of measures, the rules of the gate, the words and plots of the report."""

from __future__ import annotations

import json
import math
from typing import Any
from xml.etree import ElementTree

import pytest

from adapters.calibration.gate import Gate, decide
from adapters.calibration.measures import BASE as BASE_ALONE
from adapters.calibration.measures import Measures, ModuleError, measure
from adapters.calibration.report import CalibrationReport, Cost, Data, Subject
from adapters.calibration.samples import Sample
from adapters.calibration.scores import Scores

NUM = 40


def scores(nll: float, agree: float = 1.0, spread: float = 0.0) -> list[Scores]:
    """Ten tokens a sample, of `nll` nats each, more or less; the likeliest token is 1 on `agree` of them."""
    found = []
    for place in range(NUM):
        log_prob = -(nll + spread * (1 if place % 2 else -1))
        same = round(10 * agree * (place + 1)) - round(10 * agree * place)
        found.append(Scores([log_prob] * 10, [1] * same + [2] * (10 - same)))
    return found


SAMPLES = [Sample(line, list(range(15)), 5) for line in range(1, NUM + 1)]


def measured(**changes: list[Scores]) -> Measures:
    """A good adapter: 2 nats without it, 1 with it; `changes` by what is scored."""
    known = {
        "reference": scores(1.0),
        "reference_base": scores(2.0),
        BASE_ALONE: scores(2.05, 0.97),
        "bfloat16": scores(1.01, 0.99),
        "float8_e4m3": scores(1.015, 0.985),
    } | changes
    return measure(
        SAMPLES,
        known.pop("reference"),
        known.pop("reference_base"),
        {name: found for name, found in known.items() if found and name != "doubled"},
        known.get("doubled", ()),
    )


def test_figures_are_per_token_with_intervals() -> None:
    found = measured(bfloat16=scores(1.01, 0.9, spread=0.5))
    assert found.num_tokens == 10 * NUM
    assert found.nll_reference.value == pytest.approx(1.0)
    assert found.reference_gain.value == pytest.approx(1.0)
    bf16 = found.fidelity["bfloat16"]
    assert bf16.nll_rise.value == pytest.approx(0.01)
    # The standard error of 40 samples that are half a nat off to either side is 0.079.
    assert bf16.nll_rise.low == pytest.approx(0.01 - 1.96 * 0.079, abs=0.03)
    assert bf16.nll_rise.high == pytest.approx(0.01 + 1.96 * 0.079, abs=0.03)
    assert bf16.top1.value == pytest.approx(0.9)
    assert bf16.perplexity == pytest.approx(math.exp(1.01))
    assert found.gain["bfloat16"].nats.value == pytest.approx(1.04)
    assert found.gain["bfloat16"].perplexity_base == pytest.approx(math.exp(2.05))
    assert found.fidelity[BASE_ALONE].nll_rise.value == pytest.approx(0.05)
    assert found.comparison is not None
    assert found.comparison.nll_rise.value == pytest.approx(0.005)
    assert found.samples[3].nll["bfloat16"] == pytest.approx(1.51)
    assert measured(bfloat16=scores(1.01, 0.9, spread=0.5)) == found, "draws are seeded"


def test_long_samples_count_by_their_tokens() -> None:
    samples = [Sample(1, [1] * 11, 1), Sample(2, [1] * 101, 1)]
    short, long = Scores([-1.0] * 10, [1] * 10), Scores([-2.0] * 100, [1] * 100)
    found = measure(
        samples, [short, long], [short, long], {BASE_ALONE: [short, long], "bfloat16": [short, long]}
    )
    assert found.nll_reference.value == pytest.approx((10 + 200) / 110)
    assert found.comparison is None


def test_a_good_adapter_is_ready_in_fp8() -> None:
    for origin in ("tenant", "base", "general"):
        decision = decide(Gate(), measured(), origin)  # type: ignore[arg-type]
        assert decision.ready
        assert decision.dtype == "float8_e4m3"
        assert "half the bytes" in decision.dtype_reason
        assert decision.why_not == []


@pytest.mark.parametrize(
    ("fp8", "why"),
    [(scores(1.05, 0.985), "+0.0400 nats"), (scores(1.01, 0.96), "-3.00% of agreement")],
    ids=["likelihood", "agreement"],
)
def test_fp8_that_is_too_far_off_leaves_bf16(fp8: list[Scores], why: str) -> None:
    decision = decide(Gate(), measured(float8_e4m3=fp8), "tenant")
    assert decision.ready
    assert decision.dtype == "bfloat16"
    assert why in decision.dtype_reason
    assert decide(Gate(), measured(float8_e4m3=fp8), "tenant", "float8_e4m3").dtype == "float8_e4m3"
    assert decide(
        Gate(fp8_max_nll_rise=1, fp8_max_top1_loss=1), measured(float8_e4m3=fp8), "tenant"
    ).dtype == ("float8_e4m3")


def test_on_a_default_set_chance_does_not_cost_fp8_its_place() -> None:
    scattered = measured(float8_e4m3=scores(1.05, 0.985, spread=0.6))
    assert decide(Gate(), scattered, "tenant").dtype == "bfloat16"
    assert decide(Gate(), scattered, "base").dtype == "float8_e4m3"
    assert decide(Gate(), measured(float8_e4m3=scores(1.05, 0.985)), "base").dtype == "bfloat16"


CASES: list[tuple[str, dict[str, list[Scores]], set[str], set[str]]] = [
    # what, scores, rules failed on the tenant's samples, on a default set
    ("worse than the base", {"bfloat16": scores(2.5), "reference": scores(2.5)}, {"gain"}, set()),
    (
        "no better than by chance",
        {"bfloat16": scores(2.04, spread=0.9), "reference": scores(2.04, spread=0.9)},
        {"gain"},
        set(),
    ),
    ("blown up", {"bfloat16": scores(9.0), "reference": scores(9.0)}, {"gain"}, {"gain"}),
    ("far from its reference", {"bfloat16": scores(1.3)}, {"nll_rise"}, set()),
    ("very far from its reference", {"bfloat16": scores(1.7)}, {"nll_rise"}, {"nll_rise"}),
    ("another likeliest token", {"bfloat16": scores(1.0, 0.9)}, {"top1"}, set()),
    ("mostly another likeliest token", {"bfloat16": scores(1.0, 0.5)}, {"top1"}, {"top1"}),
    (
        "not a number",
        {"bfloat16": [Scores([math.nan] * 10, [1] * 10)] * NUM},
        {"gain", "nll_rise"},
        {"gain", "nll_rise"},
    ),
    (
        "impossible tokens",
        {"bfloat16": [Scores([-math.inf] * 10, [1] * 10)] * NUM},
        {"gain", "nll_rise"},
        {"gain", "nll_rise"},
    ),
]


@pytest.mark.parametrize(
    ("changes", "own", "default"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_rules(changes: dict[str, list[Scores]], own: set[str], default: set[str]) -> None:
    found = measured(**changes)
    for origin, failed in (("tenant", own), ("general", default)):
        decision = decide(Gate(), found, origin, "bfloat16")  # type: ignore[arg-type]
        assert {rule.name for rule in decision.rules if not rule.passed} == failed
        assert decision.ready == (not failed)
        assert len(decision.why_not) == len(failed)


def test_a_difference_that_may_be_chance_is_called_that() -> None:
    for origin, others in (("general", "On the default samples"), ("tenant", "On your samples")):
        for nll, spread, words in (
            (2.04, 0.9, "better than the base alone [-"),
            (2.06, 0.9, "worse than the base alone [-"),
        ):
            found = measured(bfloat16=scores(nll, spread=spread), reference=scores(nll, spread=spread))
            message = decide(Gate(), found, origin, "bfloat16").rules[0].message  # type: ignore[arg-type]
            assert message.startswith(others)
            assert words in message
            if origin == "general" or nll < 2.05:
                assert "which may be chance" in message
    sure = decide(Gate(), measured(bfloat16=scores(2.5), reference=scores(2.5)), "general", "bfloat16")
    assert "nats per token worse than the base alone" in sure.rules[0].message
    assert "chance" not in sure.rules[0].message


def test_an_adapter_that_does_better_at_twice_its_scale_has_the_wrong_one() -> None:
    known = measured(doubled=scores(0.8))
    assert known.doubling_gain is not None
    assert known.doubling_gain.value == pytest.approx(0.2)
    decision = decide(Gate(), known, "tenant")
    assert [rule.name for rule in decision.rules if not rule.passed] == ["scale"]
    assert "use_rslora" in decision.why_not[0]
    assert decide(Gate(max_doubling_gain=0.3), known, "tenant").ready
    for doubled in (scores(0.95), scores(1.4), scores(0.9, spread=1.0)):
        decision = decide(Gate(), measured(doubled=doubled), "tenant")
        assert decision.ready
        assert "scale" in {rule.name for rule in decision.rules}


def test_a_plan_changes_single_thresholds() -> None:
    assert Gate.of_plan({}) == Gate()
    assert Gate.of_plan({"min_gain": 2}) == Gate(min_gain=2.0)
    assert not decide(Gate.of_plan({"min_gain": 2}), measured(), "tenant").ready
    assert (
        decide(Gate.of_plan({"min_gain": -10}), measured(bfloat16=scores(3.0)), "tenant", "bfloat16")
        .rules[0]
        .passed
    )


@pytest.mark.parametrize(
    ("thresholds", "field"),
    [
        ({"min_gian": 0}, "min_gian"),
        ({"min_gain": "much"}, "min_gain"),
        ({"min_top1": 1.5}, "min_top1"),
        ({"min_top1_default": -0.1}, "min_top1_default"),
        ({"max_loss": math.inf}, "max_loss"),
        ({"max_nll_rise": math.nan}, "max_nll_rise"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(thresholds: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=f"gate: .*{field}"):
        Gate.of_plan(thresholds)


def report_of(found: Measures, model: str = "sapling:mine@1") -> CalibrationReport:
    gate = Gate()
    modules = [
        ModuleError(layer, module, 0.1 * layer, {"bfloat16": 0.001, "float8_e4m3": 0.02})
        for layer in range(4)
        for module in ("q_proj", "down_proj")
    ]
    return CalibrationReport(
        subject=Subject(model, "adp_mine", 1, "b" * 64, "int8", "cpu", "build", {"bfloat16": "a" * 64}),
        data=Data("tenant", "d" * 64, NUM, NUM, 15 * NUM, 10 * NUM, [], []),
        gate=gate,
        decision=decide(gate, found, "tenant", "bfloat16"),
        measures=found,
        modules=modules,
        cost=Cost(1.0, 2.0, 3, False),
    )


def test_the_report_is_versioned_json_whatever_was_measured() -> None:
    for found in (measured(), measured(bfloat16=[Scores([math.nan] * 10, [1] * 10)] * NUM)):
        report = report_of(found)

        def refuse(name: str) -> float:
            raise AssertionError(f"{name} is no JSON")

        value = json.loads(report.to_json(), parse_constant=refuse)
        assert (value["object"], value["schema_version"]) == ("calibration.report", 1)
        assert value["decision"]["ready"] == report.decision.ready
        assert len(value["measures"]["samples"]) == NUM
        assert set(report.summary()) >= {"ready", "dtype", "gain", "nll", "top1", "why_not"}
        json.dumps(report.summary(), allow_nan=False)


def test_plots_are_whole_pictures_for_light_and_dark() -> None:
    for found in (measured(), measured(bfloat16=[Scores([math.nan] * 10, [1] * 10)] * NUM)):
        plots = report_of(found).to_plots()
        assert set(plots) >= {"layer-share", "layer-error-bfloat16", "layer-error-float8_e4m3", "sample-nll"}
        for svg in plots.values():
            assert ElementTree.fromstring(svg).tag.endswith("svg")  # noqa: S314 - our own
            assert "prefers-color-scheme: dark" in svg
            assert "nan" not in svg
    assert plots["layer-share"].count("data-series") == 2


def test_the_page_shows_the_verdict_and_runs_nothing() -> None:
    page = report_of(measured(), model='<script>alert("x")</script>').to_html()
    assert page.count("<svg") >= 4
    assert "Ready" in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "http://www.w3.org/2000/svg" in page
    assert page.count("http") == page.count("http://www.w3.org/2000/svg"), "nothing is loaded from anywhere"
    failed = report_of(measured(bfloat16=scores(3.0)))
    assert "Failed" in failed.to_html()
    for reason in failed.decision.why_not:
        assert reason.replace("'", "&#x27;") in failed.to_html()
