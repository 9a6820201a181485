"""Checks that the compose files start real commands with real settings, and that their files exist."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
from pydantic_settings import BaseSettings
from typer.testing import CliRunner

import cli.processes
import cli.service_access
from cli.main import app
from cli.servers import OWNER_URL, Stores
from tests.shipping import compose
from tests.shipping.checkout import ROOT, tracked_files

FILES = ("compose.yml", "gpu.yml")


def known_settings(tmp_path: Any) -> set[str]:
    """Every environment variable that the packages read."""
    for name in tracked_files():
        if re.fullmatch(r"(?!tests/).*settings\.py", name):
            importlib.import_module(name.removesuffix(".py").replace("/", "."))
    found = set()
    for settings in BaseSettings.__subclasses__():
        prefix = settings.model_config.get("env_prefix", "")
        found |= {f"{prefix}{field}".upper() for field in settings.model_fields}
    stores = Stores(tmp_path, print)
    return found | {OWNER_URL, stores.redis.url_variable, stores.postgres.url_variable}


@pytest.mark.parametrize("name", FILES)
def test_every_setting_is_read_by_the_service(name: str, tmp_path: Any) -> None:
    given = {
        variable
        for service in compose.document(name)["services"].values()
        for variable in service.get("environment", {})
        if variable.startswith("ROOTSTOCK_")
    }
    assert given
    assert not given - known_settings(tmp_path)


@pytest.mark.parametrize("service", sorted(set(compose.own_services("compose.yml")) - {"operator"}))
def test_every_command_is_one_of_ours(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed by the command line itself, with every option, and not run."""
    called: list[str] = []
    for module, function in (
        (cli.processes, "serve_api"),
        (cli.processes, "serve_engine"),
        (cli.processes, "work"),
        (cli.service_access, "migrate"),
    ):
        monkeypatch.setattr(module, function, lambda *_, name=function: called.append(name))
    result = CliRunner().invoke(app, compose.own_services("compose.yml")[service]["command"])
    assert result.exit_code == 0, result.output
    assert len(called) == 1


def test_the_example_sets_every_variable_and_no_other() -> None:
    assert compose.used_variables("compose.yml") == set(compose.example_variables())
    assert not compose.used_variables("gpu.yml")


def test_what_a_service_refers_to_exists() -> None:
    document = compose.document("compose.yml")
    services, volumes = document["services"], document["volumes"]
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        for source in (volume.rsplit("}", 1)[-1].split(":")[0] for volume in service.get("volumes", ())):
            assert not source or source in volumes or (compose.DEPLOY / source).is_file(), source
    assert set(compose.document("gpu.yml")["services"]) <= set(services)
    for service in compose.own_services("compose.yml").values():
        assert (compose.DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    base = (compose.DEPLOY / compose.example_variables()["ROOTSTOCK_BASE_DIR"]).resolve()
    assert (base / "config.json").is_file()
    assert base.is_relative_to(ROOT)
