"""Base models on the command line of `up`, and the settings that their processes get."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapters.served_bases import FurtherBases, ServedBase, further_bases
from cli.base_options import parse_bases
from cli.datadir import DataDir
from cli.errors import CliError
from cli.programs import LocalBase, Service


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two directories of base models, as the working directory."""
    monkeypatch.setenv("ROOTSTOCK_DEVICE_DEVICE", "cpu")
    monkeypatch.chdir(tmp_path)
    for name in ("Oak-1B", "elm=2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    return tmp_path


def parse(bases: list[str], name: str | None = None, *formats: str) -> list[tuple[str, str, str]]:
    found = parse_bases(bases, name, formats, is_demo=False)
    return [(base.name, base.path.name, base.quantization) for base in found]


def test_names_and_formats_are_those_given(folder: Path) -> None:
    assert parse(["Oak-1B"]) == [("oak-1b", "Oak-1B", "none")]
    assert parse(["Oak-1B"], "oak", "int8") == [("oak", "Oak-1B", "int8")]
    two = ["oak=Oak-1B", "oak-small=Oak-1B"]
    assert parse(two, None, "oak-small=int8") == [("oak", "Oak-1B", "none"), ("oak-small", "Oak-1B", "int8")]
    assert [one[2] for one in parse(two, None, "oak-small=none", "int8")] == ["int8", "none"]
    assert parse(["elm=2"], "elm")[0][1] == "elm=2", "a directory of that name is meant"


@pytest.mark.parametrize(
    ("bases", "name", "formats", "says"),
    [
        ([], None, (), "no base model"),
        (["Oak-1B", "Oak-1B"], None, (), "two bases are called oak-1b"),
        (["Oak-1B", "a=Oak-1B"], "oak", (), "--base-name is for one base"),
        (["Oak-1B"], None, ("elm=int8",), "no base is called 'elm', but oak-1b"),
        (["Oak-1B"], None, ("int3",), "'int3' is not one of"),
        (["Oak-1B"], None, ("oak-1b=fp8",), "not supported on a CPU"),
        (["a=nowhere"], None, (), "holds no config.json"),
    ],
)
def test_what_is_wrong_is_said(
    folder: Path, bases: list[str], name: str | None, formats: tuple[str, ...], says: str
) -> None:
    with pytest.raises(CliError, match=says):
        parse(bases, name, *formats)


def test_each_base_may_have_a_draft_adapter(folder: Path) -> None:
    for name in ("draft", "draft=2"):
        (folder / name).mkdir()
        (folder / name / "drafter.json").write_text("{}")

    def drafters(bases: list[str], *given: str) -> dict[str, str | None]:
        found = parse_bases(bases, None, [], given, is_demo=False)
        return {one.name: one.drafter and one.drafter.name for one in found}

    assert drafters(["oak=Oak-1B"], "draft") == {"oak": "draft"}
    assert drafters(["oak=Oak-1B"], "draft=2") == {"oak": "draft=2"}, "a directory of that name is meant"
    two = ["oak=Oak-1B", "elm=elm=2"]
    assert drafters(two, "elm=draft") == {"oak": None, "elm": "draft"}
    for given, says in (
        (["draft"], "pass NAME=DIR"),
        (["ash=draft"], "no base is called 'ash'"),
        (["elm=draft", "elm=draft=2"], "elm has one already"),
        (["elm=Oak-1B"], "holds no drafter.json"),
    ):
        with pytest.raises(CliError, match=says):
            drafters(two, *given)


def test_engines_with_a_draft_adapter_speculate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = "ROOTSTOCK_ENGINE_SPECULATION", "ROOTSTOCK_ENGINE_DRAFTER"

    def settings(*bases: LocalBase) -> list[tuple[str | None, ...]]:
        with DataDir(folder / "data") as data:
            engines = Service(data, bases, "redis://r").engines()
        return [tuple(one.env.get(name) for name in names) for one in engines]

    oak = LocalBase("oak", folder / "Oak-1B", "none", folder / "draft")
    elm = LocalBase("elm", folder / "elm=2", "none")
    drafting = ("true", str(folder / "draft"))
    assert settings(oak) == [drafting]
    assert settings(elm) == [(None, None)]
    assert settings(oak, elm) == [drafting, (None, None)]
    monkeypatch.setenv(names[1], "of the operator")
    monkeypatch.setenv(names[0], "true")
    assert settings(oak) == [("true", "of the operator")]


def test_each_base_gets_engines_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bases = [LocalBase("oak", folder / "Oak-1B", "none"), LocalBase("elm", folder / "elm=2", "int8")]
    with DataDir(folder / "data") as data:
        service = Service(data, bases, "redis://r", replicas=2)
        engines = [program.env for program in service.engines()]
        served = [(env["ROOTSTOCK_ENGINE_ENGINE_ID"], env["ROOTSTOCK_ENGINE_BASE_NAME"]) for env in engines]
        assert served == [("engine-0", "oak"), ("engine-1", "oak"), ("engine-2", "elm"), ("engine-3", "elm")]
        assert [env["ROOTSTOCK_DEVICE_QUANTIZATION"] for env in engines] == ["none", "none", "int8", "int8"]
        settings = service.environment()
        endpoints = [env["ROOTSTOCK_ENGINE_ENDPOINT"] for env in engines]
        assert settings["ROOTSTOCK_API_ENGINE_ENDPOINT"].split(",") == endpoints[:2]
        assert settings["ROOTSTOCK_WORKER_ENGINE_ENDPOINTS"].split(",") == endpoints
        (elm,) = further_bases(settings)
        assert (elm.name, elm.path, list(elm.engines)) == ("elm", folder / "elm=2", endpoints[2:])
        alone = Service(data, bases[:1], "redis://r")
        assert "ROOTSTOCK_BASES_FURTHER" not in alone.environment()


def test_bases_differ_in_name_and_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ServedBase(name="oak", path=Path("oak"), engine_endpoint="tcp://a:1")

    def with_further(**fields: str) -> FurtherBases:
        known = {"name": "elm", "path": "elm", "engine_endpoint": "tcp://b:1"}
        monkeypatch.setenv("ROOTSTOCK_BASES_FURTHER", json.dumps([known | fields]))
        return FurtherBases()

    assert [base.name for base in with_further().beside(first)] == ["oak", "elm"]
    with pytest.raises(ValueError, match="two bases are called 'oak'"):
        with_further(name="oak").beside(first)
    with pytest.raises(ValueError, match="tcp://a:1 is named for 'oak' and 'elm'"):
        with_further(engine_endpoint="tcp://b:1,tcp://a:1").beside(first)
    with pytest.raises(ValueError, match="names no engine"):
        with_further(engine_endpoint=" ")
