"""The engines of several bases in a cluster: each base has as many as it needs, with settings of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from cli.cluster.fleet import Drains, Fleet, fleets
from cli.cluster.settings import FurtherBase, RaySettings
from engine.registry import RegistryAddress
from engine.transport.curve import KeyPair
from tests.support.waiting import eventually

ENVIRONMENT = {"ROOTSTOCK_ENGINE_BASE_NAME": "oak", "ROOTSTOCK_ENGINE_BASE": "/oak", "OMP_NUM_THREADS": "1"}
ELM = FurtherBase(name="elm", path="/elm", quantization="int8")


class Placed:
    """In place of Ray: engines by name, with their settings."""

    def __init__(self) -> None:
        self.engines: dict[str, Mapping[str, str]] = {}
        self.may_stop = threading.Event()
        self.may_stop.set()
        self.stopped: list[str] = []

    def start(self, name: str, environment: Mapping[str, str]) -> None:
        assert name not in self.engines
        self.engines[name] = environment

    def is_of_other_settings(self, name: str, environment: Mapping[str, str]) -> bool:
        return self.engines[name] != environment

    def stop(self, name: str, drain_s: float) -> None:
        self.stopped.append(name)
        assert self.may_stop.wait(drain_s)
        del self.engines[name]


@pytest.fixture
def placed() -> Placed:
    return Placed()


@pytest.fixture
def settings(tmp_path: Path) -> RaySettings:
    KeyPair.make().write(tmp_path / "clients.key")
    registry = str(RegistryAddress("redis://127.0.0.1:1/0", tmp_path / "clients.key"))
    return RaySettings(address="head:1", registry=registry, further=(ELM,), replicas_min=2, replicas_max=3)


async def look(all_fleets: list[Fleet], placed: Placed) -> set[str]:
    running = set(placed.engines)
    for fleet in all_fleets:
        await fleet.look(running)
    return set(placed.engines)


async def test_each_base_has_its_engines_with_its_settings(placed: Placed, settings: RaySettings) -> None:
    made = fleets(settings, ENVIRONMENT, placed, Drains(placed, 10))
    assert await look(made, placed) == {"engine-0", "engine-1", "engine-elm-0", "engine-elm-1"}
    assert placed.engines["engine-0"] == ENVIRONMENT
    assert placed.engines["engine-elm-1"] == ENVIRONMENT | ELM.environment()
    assert placed.engines["engine-elm-1"]["ROOTSTOCK_ENGINE_BASE"] == "/elm"
    before = dict(placed.engines)
    assert await look(made, placed) == before.keys(), "nothing is started twice"
    assert placed.stopped == []


async def test_one_bases_draft_adapter_is_not_anothers(placed: Placed, settings: RaySettings) -> None:
    of_oak = {"ROOTSTOCK_ENGINE_PACKED_DRAFTER": "oak's", "ROOTSTOCK_ENGINE_SPECULATION": "true"}
    of_ash = {"ROOTSTOCK_ENGINE_DRAFTER": "/ash-draft"}
    ash = FurtherBase(name="ash", path="/ash", quantization="none", drafting=of_ash)
    bases = settings.model_copy(update={"further": (ELM, ash)})
    await look(fleets(bases, ENVIRONMENT | of_oak, placed, Drains(placed, 10)), placed)
    drafters = {
        name: [value for setting, value in its.items() if setting.endswith(("DRAFTER", "SPECULATION"))]
        for name, its in placed.engines.items()
        if name.endswith("-0")
    }
    assert drafters == {"engine-0": ["oak's", "true"], "engine-elm-0": [], "engine-ash-0": ["/ash-draft"]}


async def test_one_base_is_changed_and_the_others_engines_stay(placed: Placed, settings: RaySettings) -> None:
    await look(fleets(settings, ENVIRONMENT, placed, Drains(placed, 10)), placed)
    other = settings.model_copy(update={"further": (ELM.model_copy(update={"quantization": "fp8"}),)})
    made = fleets(other, ENVIRONMENT, placed, Drains(placed, 10))
    placed.may_stop.clear()
    await look(made, placed)
    await eventually(lambda: sorted(placed.stopped) == ["engine-elm-0", "engine-elm-1"])
    await look(made, placed)
    assert len(placed.stopped) == 2, "one that drains is not stopped again, nor started"
    placed.may_stop.set()
    await eventually(lambda: len(placed.engines) == 2)
    await asyncio.sleep(0)
    assert len(await look(made, placed)) == 4
    assert placed.engines["engine-elm-0"]["ROOTSTOCK_DEVICE_QUANTIZATION"] == "fp8"


async def test_a_later_controller_keeps_what_it_finds_within_bounds(
    placed: Placed, settings: RaySettings
) -> None:
    placed.engines = {f"engine-{number}": ENVIRONMENT for number in range(4)}
    made = fleets(settings, ENVIRONMENT, placed, Drains(placed, 10))
    await look(made, placed)
    await eventually(lambda: "engine-3" not in placed.engines)
    assert placed.stopped == ["engine-3"]
    assert {name for name in placed.engines if made[1].has(name)} == {"engine-elm-0", "engine-elm-1"}


def test_engines_of_a_base_that_is_gone_belong_to_none(placed: Placed, settings: RaySettings) -> None:
    made = fleets(settings, ENVIRONMENT, placed, Drains(placed, 10))
    owners = {
        name: [fleet.has(name) for fleet in made] for name in ("engine-7", "engine-elm-7", "engine-ash-0")
    }
    assert owners == {
        "engine-7": [True, False],
        "engine-elm-7": [False, True],
        "engine-ash-0": [False, False],
    }
