"""`rootstock plan-capacity`: what it plans, what limits a plan, and what it refuses."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import refusal, run
from tests.shipping.checkout import ROOT

BASE = ("plan-capacity", "--model", "llama-3.1-8b")
LOAD = (*BASE, "--requests-per-second", "200", "--adapters", "1000", "--price", "4")


@cache
def plan(*arguments: str) -> dict[str, Any]:
    """Once for the same arguments: nothing else decides, and a plan takes a quarter of a second of CPU."""
    return json.loads(run(*arguments, "--json"))  # type: ignore[no-any-return]


def test_as_few_replicas_as_meet_the_targets() -> None:
    enough = plan(*LOAD)
    assert enough["misses"] == []
    fewer = plan(*LOAD, "--gpus", str(enough["gpus"] - 1))
    assert fewer["misses"][0] == enough["limit"]
    assert fewer["misses"]
    assert enough["output_tokens_per_s"] == pytest.approx(200 * 338)


def test_costs_follow_from_price_and_throughput() -> None:
    found = plan(*LOAD)
    assert found["cost_per_hour"] == 4 * found["gpus"]
    per_hour = 200 * 338 * 3600 / 1e6
    assert found["cost_per_million_output_tokens"] == pytest.approx(found["cost_per_hour"] / per_hour)
    assert found["cost_per_million_tokens"] < found["cost_per_million_output_tokens"]
    assert plan(*LOAD[:-2])["cost_per_hour"] is None


def test_more_load_needs_more_replicas_and_stricter_targets_do_too() -> None:
    least = plan(*LOAD)["replicas"]
    assert plan(*LOAD, "--requests-per-second", "400")["replicas"] > least
    assert plan(*LOAD, "--token-target-ms", "10")["replicas"] > least
    assert "time between tokens" in plan(*LOAD, "--token-target-ms", "10")["limit"]


def test_an_overload_is_named_and_its_waits_are_not_numbers() -> None:
    overload = (*BASE, "--requests-per-second", "200", "--gpus", "1")
    found = plan(*overload)
    assert found["figures"]["ttft_p99"] is None
    assert "rows: a replica with 256 rows takes" in found["misses"][0]
    assert "missed: rows" in run(*overload)
    assert "unbounded" in run(*overload)


def test_keys_and_values_limit_long_requests() -> None:
    found = plan(
        *BASE,
        "--requests-per-second",
        "1",
        "--prompt-tokens",
        "16000",
        "--output-tokens",
        "500",
        "--gpus",
        "1",
    )
    assert found["rows"] == found["rows_by_memory"] < 256


def test_adapters_that_are_loaded_again_and_again() -> None:
    found = plan(*LOAD, "--adapters", "1000000", "--gpus", "8")
    assert 0.2 < found["figures"]["miss_share"] < 1
    assert found["figures"]["loader_utilisation"] > 0.1


def test_assumptions_are_said() -> None:
    measured = plan(*LOAD)
    assert measured["assumptions"] == []
    assumed = plan(*LOAD[:2], "llama-3.1-70b", *LOAD[3:], "--tensor-parallel", "4", "--gpu", "h100")
    assert len(assumed["assumptions"]) == 3


def test_a_checkpoint_is_read(tmp_path: Path) -> None:
    from engine.planner.shapes import PUBLISHED

    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED["llama-3.1-8b"]))
    named, read = plan(*LOAD), plan("plan-capacity", "--model", str(tmp_path), *LOAD[3:])
    assert named == read


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--model", "gpt-9"),
            r"no model 'gpt-9': pass a directory with a config.json, or one of llama-3.1-8b",
        ),
        (("--gpu", "b999"), r"--gpu b999 is not supported: pass one of h200, h100"),
        (("--tensor-parallel", "3"), r"--tensor-parallel 3 is not supported: pass one of 1, 2, 4, 8"),
        (("--quantization", "int8"), r"--quantization int8 is not supported: pass one of none, fp8, int4"),
        (("--requests-per-second", "0"), r"--requests-per-second 0 must be a positive number"),
        (("--output-tokens", "inf"), r"--output-tokens inf must be a positive number"),
        (("--output-tokens", "200000"), r"exceed the model's context of 131072: pass fewer"),
        (("--token-target-ms", "1"), r"no number of replicas meets the targets: time between tokens: p99 of"),
        (("--tensor-parallel", "4", "--gpus", "2"), r"--gpus 2 is less than one replica's 4: pass more"),
        (("--gpu", "h100", "--model", "llama-3.1-70b", "--quantization", "none"), r"--tensor-parallel"),
    ],
)
def test_refusals_say_what_to_do(arguments: tuple[str, ...], says: str) -> None:
    assert re.search(says, refusal(*LOAD, *arguments))


def examples() -> list[tuple[list[str], str]]:
    """Commands and outputs of docs/operations.md."""
    text = (ROOT / "docs/operations.md").read_text()
    blocks = re.findall(r"```\n\$ rootstock (plan-capacity[^\n]*)\n(.*?)```", text, re.DOTALL)
    return [(command.split(), output) for command, output in blocks]


def test_there_are_examples() -> None:
    assert len(examples()) == 2


@pytest.mark.parametrize("number", range(2))
def test_documented_examples_are_what_is_printed(number: int) -> None:
    arguments, output = examples()[number]
    assert run(*arguments) == output
