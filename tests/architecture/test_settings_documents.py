"""The documents' tables and example files of settings against the classes that read them."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    path.relative_to(ROOT)
    for path in ROOT.glob("[a-z]*/**/*.py")
    if "tests" not in path.relative_to(ROOT).parts and "SettingsConfigDict(env_prefix=" in path.read_text()
)


def classes() -> list[tuple[Path, type[BaseSettings]]]:
    found = []
    for path in MODULES:
        module = importlib.import_module(".".join(path.with_suffix("").parts))
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, BaseSettings) and kind.__module__ == module.__name__:
                found.append((path, kind))
    return found


def test_the_table_of_prefixes_is_whole() -> None:
    table = re.findall(r"^\| `(ROOTSTOCK_[A-Z]+_)` \| `([a-z_/]+\.py)` \|", operations(), re.MULTILINE)
    assert len(table) == len(set(table))
    assert set(table) == {(kind.model_config["env_prefix"], str(path)) for path, kind in classes()}


@pytest.mark.parametrize(
    "document", ["deploy/rootstock.env.example", "docs/install.md", "docs/operations.md"]
)
def test_settings_that_documents_name_exist(document: str) -> None:
    known = {
        f"{kind.model_config['env_prefix']}{name.upper()}"
        for _, kind in classes()
        for name in kind.model_fields
    } | {"ROOTSTOCK_REDIS_URL", "ROOTSTOCK_DATA"}
    named = set(re.findall(r"ROOTSTOCK_[A-Z0-9_]*[A-Z0-9]", (ROOT / document).read_text()))
    prefixes = {str(kind.model_config["env_prefix"]).rstrip("_") for _, kind in classes()}
    assert sorted(named - known - prefixes) == []


def operations() -> str:
    return (ROOT / "docs" / "operations.md").read_text()
