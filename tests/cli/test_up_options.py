"""Several engines on one machine: their GPUs, and settings that they cannot share."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import up_options
from cli.datadir import DataDir
from cli.errors import UsageError
from cli.programs import Service
from cli.up_options import UpOptions


def options(replicas: int) -> UpOptions:
    return UpOptions(Path("d"), "127.0.0.1", 0, None, None, None, replicas=replicas)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "ROOTSTOCK_DEVICE_DEVICE", "ROOTSTOCK_ENGINE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [(None, ["0", "1", "2"]), ("4,6,7,5", ["4", "6", "7"]), ("GPU-a,GPU-b,GPU-c", None)],
)
def test_each_engine_gets_a_gpu(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, chosen: list[str] | None
) -> None:
    monkeypatch.setattr(up_options, "device_kind", lambda wanted: "cuda")
    monkeypatch.setattr(up_options, "num_gpus", lambda: 4)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert options(3).chosen_gpus() == (chosen or ["GPU-a", "GPU-b", "GPU-c"])
    assert options(1).chosen_gpus() == [], "it chooses itself"
    with pytest.raises(UsageError, match="--replicas 5 needs as many GPUs"):
        options(5).chosen_gpus()


def test_engines_on_a_cpu_have_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_options, "device_kind", lambda wanted: "cpu")
    assert options(9).chosen_gpus() == []


def test_several_engines_cannot_share_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOTSTOCK_ENGINE_ENDPOINT", "tcp://127.0.0.1:5700")
    options(1).check_replicas()
    with pytest.raises(UsageError, match="unset it"):
        options(2).check_replicas()


def service(data: DataDir, **fields: object) -> Service:
    return Service(data, Path("base"), "sapling", "none", "redis://r", **fields)  # type: ignore[arg-type]


def test_each_engine_has_settings_of_its_own(tmp_path: Path) -> None:
    with DataDir(tmp_path / "data") as data:
        several = service(data, replicas=3, gpus=["4", "6", "7"], api_processes=2)
        engines = several.engines()
        assert [one.name for one in engines] == ["engine-0", "engine-1", "engine-2"]
        assert [one.env["CUDA_VISIBLE_DEVICES"] for one in engines] == ["4", "6", "7"]
        assert [one.env["ROOTSTOCK_ENGINE_ENGINE_ID"] for one in engines] == [one.name for one in engines]
        endpoints = [one.env["ROOTSTOCK_ENGINE_ENDPOINT"] for one in engines]
        assert len(set(endpoints)) == 3
        assert len({one.log for one in engines}) == len({one.reason for one in engines}) == 3
        (first, second) = several.apis(7, [8, 9])
        assert first.env["ROOTSTOCK_API_ENGINE_ENDPOINT"].split(",") == endpoints
        assert (first.name, first.pass_fds, second.name, second.pass_fds) == (
            "api-0",
            (7, 8),
            "api-1",
            (7, 9),
        )
        assert (second.env["ROOTSTOCK_API_LISTEN_FD"], second.env["ROOTSTOCK_API_OWN_FD"]) == ("7", "9")


def test_a_single_engine_and_api_process_keep_their_names(tmp_path: Path) -> None:
    with DataDir(tmp_path / "data") as data:
        single = service(data)
        (engine,), (api,) = single.engines(), single.apis(7)
        assert (engine.name, api.name, api.pass_fds) == ("engine", "api", (7,))
        assert "ROOTSTOCK_API_OWN_FD" not in api.env
        assert single.engine_states == [data.path / "engine" / "engine-0"]
