"""Several engines on one machine: their GPUs, and settings that they cannot share."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.published_artifacts.publishing import published_key
from adapters.storage import LocalStore
from cli import up_options
from cli.bases import publish_base
from cli.client_key import make_client_key
from cli.cluster import publishing
from cli.cluster.settings import RaySettings, engine_environment
from cli.datadir import DataDir
from cli.draft_adapters import publish_drafter
from cli.errors import CliError, UsageError
from cli.main import complete_options
from cli.programs import CHECKOUT, LocalBase, Service
from cli.up_options import UpOptions
from engine.lora.draft_adapters import decode_note
from engine.registry import RegistryAddress
from engine.transport.curve import KeyPair
from tests.engine.runner.bases import VOCAB_SIZE, write_base, write_draft_adapter


def options(replicas: int) -> UpOptions:
    return UpOptions(Path("d"), "127.0.0.1", 0, (), None, (), replicas=replicas)


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


def test_a_tensor_parallel_engine_gets_several_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_options, "device_kind", lambda wanted: "cuda")
    monkeypatch.setattr(up_options, "num_gpus", lambda: 8)
    assert replace(options(3), tensor_parallel=2).chosen_gpus() == ["0,1", "2,3", "4,5"]
    needed = r"--replicas 3 needs 4 GPUs for each \(--tensor-parallel 4\), and there are 8: pass --replicas 2"
    with pytest.raises(UsageError, match=needed):
        replace(options(3), tensor_parallel=4).chosen_gpus()


def test_engines_on_a_cpu_have_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_options, "device_kind", lambda wanted: "cpu")
    assert options(9).chosen_gpus() == []


def test_several_engines_cannot_share_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOTSTOCK_ENGINE_ENDPOINT", "tcp://127.0.0.1:5700")
    options(1).check_replicas()
    with pytest.raises(UsageError, match="unset it"):
        options(2).check_replicas()


def service(data: DataDir, **fields: object) -> Service:
    return Service(data, [LocalBase("sapling", Path("base"), "none")], "redis://r", **fields)  # type: ignore[arg-type]


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


def test_engines_metrics_have_ports_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "ROOTSTOCK_ENGINE_METRICS_ENDPOINT"
    monkeypatch.setenv(name, "127.0.0.1:9400")
    with DataDir(tmp_path / "data") as data:
        engines = service(data, replicas=2, prefill_replicas=1).engines()
    assert [one.env[name] for one in engines] == ["127.0.0.1:9400", "127.0.0.1:9401", "127.0.0.1:9402"]


def test_prefill_engines_follow_those_that_take_requests_and_only_these_ask_them(tmp_path: Path) -> None:
    with DataDir(tmp_path / "data") as data:
        apart = service(data, prefill_replicas=2, gpus=["0", "1", "2"])
        serving, *prefill = apart.engines()
        assert [one.name for one in (serving, *prefill)] == ["engine", "prefill-0", "prefill-1"]
        assert [one.env["CUDA_VISIBLE_DEVICES"] for one in (serving, *prefill)] == ["0", "1", "2"]
        listening = [one.env["ROOTSTOCK_PREFILL_ENDPOINT"] for one in prefill]
        assert serving.env["ROOTSTOCK_PREFILL_SOURCES"].split(",") == listening
        assert "ROOTSTOCK_PREFILL_ENDPOINT" not in serving.env
        assert not [one for one in prefill if "ROOTSTOCK_PREFILL_SOURCES" in one.env]
        endpoints = [one.env["ROOTSTOCK_ENGINE_ENDPOINT"] for one in (serving, *prefill)]
        (api,) = apart.apis(7)
        assert api.env["ROOTSTOCK_API_ENGINE_ENDPOINT"].split(",") == endpoints, "metrics are of all"
        assert apart.jobs().env["ROOTSTOCK_JOBS_ENGINE_ENDPOINT"] == endpoints[0]
        folders = [data.path / "engine" / name for name in ("engine-0", "prefill-0", "prefill-1")]
        assert apart.engine_states == folders


def test_prefill_engines_need_a_device_each_and_one_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up_options, "device_kind", lambda wanted: "cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with DataDir(tmp_path / "data") as data:
        assert on_ray(data, None, prefill_replicas=1).chosen_gpus() == ["0", "1"]
        with pytest.raises(UsageError, match="need 3 GPUs"):
            on_ray(data, None, prefill_replicas=2).chosen_gpus()
        for fields in ({"ray": "local"}, {"ray": None, "tensor_parallel": 2}):
            with pytest.raises(UsageError, match="--prefill-replicas 1"):
                on_ray(data, prefill_replicas=1, **fields).check_replicas()
        monkeypatch.setenv("ROOTSTOCK_PREFILL_SOURCES", "tcp://127.0.0.1:1")
        with pytest.raises(UsageError, match="unset it"):
            on_ray(data, None, prefill_replicas=1).check_replicas()


def test_a_single_engine_and_api_process_keep_their_names(tmp_path: Path) -> None:
    with DataDir(tmp_path / "data") as data:
        single = service(data)
        (engine,), (api,) = single.engines(), single.apis(7)
        assert (engine.name, api.name, api.pass_fds) == ("engine", "api", (7,))
        assert "ROOTSTOCK_API_OWN_FD" not in api.env
        assert single.engine_states == [data.path / "engine" / "engine-0"]


def on_ray(data: DataDir, ray: str | None = "local", **fields: object) -> UpOptions:
    known = {"host": "127.0.0.1", "port": 0, "bases": (), "base_name": None, "quantizations": ()}
    return UpOptions(data=data.path, ray=ray, **(known | fields))  # type: ignore[arg-type]


def test_on_ray_a_head_and_a_controller_stand_for_the_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up_options, "device_kind", lambda wanted: "cuda")
    monkeypatch.setenv("ROOTSTOCK_STRIPE_API_KEY", "secret")
    with DataDir(tmp_path / "data") as data:
        plan = on_ray(data, replicas=2, replicas_max=5, tensor_parallel=4).chosen_ray(data.path)
        assert plan is not None
        assert (plan.replicas_min, plan.replicas_max, plan.gpus) == (2, 5, 4)
        assert on_ray(data, tensor_parallel=4, replicas=9).chosen_gpus() == []
        placed = service(data, ray=plan, tensor_parallel=4)
        head, controller = placed.engines()
        assert (head.name, controller.name) == ("ray", "engine-controller")
        assert not [name for name in head.env if name.startswith("ROOTSTOCK_")], "Ray gets no secret"
        assert {one.env["RAY_AUTH_MODE"] for one in (head, controller)} == {"token"}
        assert head.argv[head.argv.index("--include-dashboard") + 1] == "false"
        assert controller.env["ROOTSTOCK_RAY_REPLICAS_MAX"] == "5"
        passed_on = engine_environment(controller.env)
        assert len(passed_on["ROOTSTOCK_CLUSTER_CLIENT_KEYS"]) == 64
        assert not [name for name in passed_on if "STRIPE" in name or "TENANTS" in name or "_DB_" in name]
        assert {path.stat().st_mode & 0o777 for path in (plan.token, plan.secret)} == {0o600}
        again = on_ray(data).chosen_ray(data.path)
        assert again is not None
        assert again.settings("redis://r")["ROOTSTOCK_CLUSTER_CLIENT_KEYS"] in passed_on.values()


def test_on_ray_each_base_has_engines_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DataDir(tmp_path / "data") as data:
        plan = on_ray(data, replicas_min=1, replicas_max=2).chosen_ray(data.path)
        assert plan is not None
        bases = [LocalBase("oak", Path("/oak"), "none"), LocalBase("elm", Path("/elm"), "int8")]
        digests = {"oak": "a" * 64, "elm": "b" * 64}
        placed = Service(data, bases, "redis://r", ray=replace(plan, base_digests=digests))
        settings = placed.environment()
        of_oak, of_elm = (RegistryAddress.parse(one) for one in placed.serving_endpoints)
        assert (of_oak.base, of_elm.base) == ("oak", "elm")
        assert (
            settings["ROOTSTOCK_API_ENGINE_ENDPOINT"]
            == settings["ROOTSTOCK_JOBS_ENGINE_ENDPOINT"]
            == str(of_oak)
        )
        assert json.loads(settings["ROOTSTOCK_BASES_FURTHER"])[0]["engine_endpoint"] == str(of_elm)
        assert RegistryAddress.parse(settings["ROOTSTOCK_WORKER_ENGINE_ENDPOINTS"]).base is None
        assert [folder.name for folder in placed.engine_states] == [
            *("engine-0", "engine-1"),
            *("engine-elm-0", "engine-elm-1"),
        ]
        _, controller = placed.engines()
    for name in [name for name in os.environ if name.startswith("ROOTSTOCK_")]:
        monkeypatch.delenv(name)
    for name, value in controller.env.items():
        if name.startswith("ROOTSTOCK_RAY_"):
            monkeypatch.setenv(name, value)
    (elm,) = RaySettings().further
    its = engine_environment(controller.env) | elm.environment()
    assert {name: its[name] for name in elm.environment()} == {
        "ROOTSTOCK_ENGINE_BASE": "/elm",
        "ROOTSTOCK_ENGINE_BASE_NAME": "elm",
        "ROOTSTOCK_DEVICE_QUANTIZATION": "int8",
        "ROOTSTOCK_BASE_DIGEST": "b" * 64,
    }


def test_engines_get_the_stores_settings_only_to_fetch_and_the_key_that_reads() -> None:
    store = {
        "ROOTSTOCK_STORAGE_URL": "s3://bucket",
        "ROOTSTOCK_STORAGE_ACCESS_KEY_ID": "writer",
        "ROOTSTOCK_STORAGE_SECRET_ACCESS_KEY": "w",
    }
    reader = {
        "ROOTSTOCK_STORAGE_READER_ACCESS_KEY_ID": "reader",
        "ROOTSTOCK_STORAGE_READER_SECRET_ACCESS_KEY": "r",
    }
    assert engine_environment(store | reader) == {}
    for fetching in ({"ROOTSTOCK_BASE_DIGEST": "0" * 64}, {"ROOTSTOCK_ADAPTERS_FETCH": "True"}):
        assert engine_environment(store | reader | fetching) == fetching | {
            "ROOTSTOCK_STORAGE_URL": "s3://bucket",
            "ROOTSTOCK_STORAGE_ACCESS_KEY_ID": "reader",
            "ROOTSTOCK_STORAGE_SECRET_ACCESS_KEY": "r",
        }
        for lacking in (store, store | {"ROOTSTOCK_STORAGE_READER_ACCESS_KEY_ID": "reader"}):
            with pytest.raises(ValueError, match="ROOTSTOCK_STORAGE_READER_SECRET_ACCESS_KEY"):
                engine_environment(lacking | fetching)
        directory = {"ROOTSTOCK_STORAGE_URL": "file:///shared"}
        assert engine_environment(directory | fetching) == directory | fetching


def test_on_ray_engines_fetch_where_the_operator_has_named_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ROOTSTOCK_STORAGE_URL", "ROOTSTOCK_ADAPTERS_FETCH"):
        monkeypatch.delenv(name, raising=False)
    with DataDir(tmp_path / "data") as data:

        def environment(digest: str = "") -> dict[str, str]:
            plan = on_ray(data).chosen_ray(data.path)
            assert plan is not None
            return service(data, ray=replace(plan, base_digests={"sapling": digest})).environment()

        assert "ROOTSTOCK_ADAPTERS_FETCH" not in environment(), "they read the folders of `up`"
        monkeypatch.setenv("ROOTSTOCK_STORAGE_URL", "s3://bucket")
        assert environment("a" * 64)["ROOTSTOCK_ADAPTERS_FETCH"] == "true"
        assert environment("a" * 64)["ROOTSTOCK_BASE_DIGEST"] == "a" * 64
        monkeypatch.setenv("ROOTSTOCK_STORAGE_ACCESS_KEY_ID", "writer")
        with pytest.raises(CliError, match="READER_ACCESS_KEY_ID"):
            environment()
        monkeypatch.setenv("ROOTSTOCK_ADAPTERS_FETCH", "false")
        assert environment()["ROOTSTOCK_ADAPTERS_FETCH"] == "false"


async def test_the_base_of_a_cluster_is_published_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, further = tmp_path / "base", tmp_path / "further"
    base.mkdir()
    further.mkdir()
    (further / "config.json").write_text('{"further": true}')
    (base / "config.json").write_text("{}")
    runs: list[tuple[str, ...]] = []

    async def run_child(*command: str, environment: Mapping[str, str], failure: str) -> bytes:
        runs.append(command)
        if len(runs) in (2, 3):  # processes of their own would show nothing more
            assert command == runs[0]
            return (await asyncio.to_thread(publish_base, None, base, verify=False)).encode()
        return await publish_here(*command, environment=environment, failure=failure)

    publish_here = publishing.run_child
    monkeypatch.setattr(publishing, "run_child", run_child)
    monkeypatch.setenv("ROOTSTOCK_STORAGE_URL", (tmp_path / "store").as_uri())
    environment = {"ROOTSTOCK_STORAGE_URL": (tmp_path / "store").as_uri()}

    async def published(*folders: Path, **given: str) -> list[str]:
        bases = [LocalBase(folder.name, folder, "none") for folder in folders]
        return [*(await publishing.published_bases(tmp_path, bases, environment | given)).values()]

    (digest,) = await published(base)
    assert len(digest) == 64
    assert await published(base) == [digest]
    assert len(runs) == 1
    shutil.rmtree(tmp_path / "store")
    assert await published(base) == [digest]
    assert len(runs) == 2, "the store had lost it"
    (base / "config.json").write_text("[]")
    first, second = await published(base, further)
    assert len({digest, first, second}) == 3
    assert len(runs) == 4
    assert await published(base, further, ROOTSTOCK_BASE_DIGEST="given") == ["given", second]
    assert len(runs) == 4
    (base / "config.json").unlink()
    with pytest.raises(CliError, match=r"^a base has one config\.json"):
        await published(base)


async def test_draft_adapters_of_a_cluster_are_packed_and_published_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, store = tmp_path / "base", LocalStore(tmp_path / "store")
    write_base(base, num_hidden_layers=1)
    drafter = write_draft_adapter(base, tmp_path / "draft", 1, ahead=3)
    environment = {
        "ROOTSTOCK_STORAGE_URL": (tmp_path / "store").as_uri(),
        "ROOTSTOCK_ENGINE_ARTIFACTS_DIR": str(tmp_path / "artifacts"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    num_runs = 0

    async def run_child(*command: str, environment: Mapping[str, str], failure: str) -> bytes:
        nonlocal num_runs
        num_runs += 1
        assert command == ("cli.main", "base", "publish-drafter", str(base), str(drafter))
        return (await asyncio.to_thread(publish_drafter, None, base, drafter)).encode()

    monkeypatch.setattr(publishing, "run_child", run_child)
    bases = [LocalBase("oak", base, "none", drafter), LocalBase("elm", Path("/elm"), "none")]

    async def notes() -> dict[str, str]:
        return await publishing.published_drafters(tmp_path, bases, environment)

    published = await notes()
    assert published.keys() == {"oak"}
    found = decode_note(published["oak"].encode(), "note", VOCAB_SIZE)
    assert found.num_ahead == 3
    assert await store.head(published_key(found.ref.digest)) is not None
    assert await notes() == published
    assert num_runs == 1
    await store.delete(published_key(found.ref.digest))
    assert await notes() == published
    assert num_runs == 2, "the store had lost it"

    with DataDir(tmp_path / "data") as data:
        plan = on_ray(data).chosen_ray(data.path)
        assert plan is not None
        here = Service(data, bases, "redis://r", ray=plan).environment()
        assert here["ROOTSTOCK_ENGINE_DRAFTER"] == str(drafter), "at the same path on every host"
        there = Service(data, bases, "redis://r", ray=replace(plan, drafters=published)).environment()
        assert there["ROOTSTOCK_ENGINE_PACKED_DRAFTER"] == published["oak"]
        assert there["ROOTSTOCK_ENGINE_SPECULATION"] == "true"
        assert "ROOTSTOCK_ENGINE_DRAFTER" not in there
        assert json.loads(there["ROOTSTOCK_RAY_FURTHER"])[0]["drafting"] == {}
    (drafter / "drafter.json").unlink()
    with pytest.raises(CliError, match=r"drafter\.json: the file is missing"):
        await notes()


def test_a_client_key_is_made_once(tmp_path: Path) -> None:
    public = make_client_key(tmp_path / "clients.key")
    assert make_client_key(tmp_path / "clients.key") == public
    assert KeyPair.read(tmp_path / "clients.key").public.hex() == public
    with pytest.raises(CliError, match="name a file in a folder"):
        make_client_key(tmp_path / "nowhere" / "clients.key")
    (tmp_path / "other").write_text("no key")
    with pytest.raises(CliError, match="cannot be used"):
        make_client_key(tmp_path / "other")


def test_options_of_clusters_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROOTSTOCK_REDIS_URL", raising=False)
    with DataDir(tmp_path / "data") as data:
        with pytest.raises(UsageError, match="--replicas-max is for clusters"):
            on_ray(data, None, replicas_max=2).chosen_ray(data.path)
        with pytest.raises(UsageError, match="--replicas-min 3 is more than --replicas-max 2"):
            on_ray(data, replicas_min=3, replicas_max=2).chosen_ray(data.path)
        with pytest.raises(UsageError, match="set ROOTSTOCK_REDIS_URL"):
            on_ray(data, "head:6390").chosen_ray(data.path)
        monkeypatch.setenv("ROOTSTOCK_REDIS_URL", "redis://r")
        joined = on_ray(data, "head:6390").chosen_ray(data.path)
        assert joined is not None
        assert (joined.address, joined.is_head) == ("head:6390", False)
        monkeypatch.setattr(up_options, "require_ray", missing)
        with pytest.raises(CliError, match=r"install rootstock\[ray\]"):
            on_ray(data).chosen_ray(data.path)
    monkeypatch.setenv("ROOTSTOCK_ENGINE_ENDPOINT", "tcp://127.0.0.1:5700")
    with pytest.raises(UsageError, match="--ray gives each engine its own"):
        on_ray(data).check_replicas()


def missing() -> None:
    raise CliError("Ray is not installed: install rootstock[ray]")


def test_ray_needs_no_address() -> None:
    assert complete_options(["up", "--ray"]) == ["up", "--ray", "local"]
    assert complete_options(["up", "--ray", "--demo"]) == ["up", "--ray", "local", "--demo"]
    assert complete_options(["up", "--ray", "h:1", "--demo"]) == ["up", "--ray", "h:1", "--demo"]


def test_without_ray_it_is_not_imported() -> None:
    code = "import sys, cli.main, cli.up, cli.up_options, cli.cluster.join; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=False).returncode == 0
