"""Collecting in several processes: each file is imported by one of them first; garbage is collected later."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.collecting import COLLECT_AFTER, files_to_collect, import_share, without_garbage_collection


def config_of(root: Path, *arguments: str, **others: Any) -> Any:
    return SimpleNamespace(
        args=arguments,
        rootpath=root,
        invocation_params=SimpleNamespace(dir=root),
        getini=lambda name: {"norecursedirs": ["left"]}[name],
        getoption=lambda name: {"ignore": ["tests/b"]}[name],
        **others,
    )


def test_garbage_is_collected_again_afterwards() -> None:
    with without_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_threshold() == COLLECT_AFTER


def test_processes_import_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("a/test_a", "a/test_b", "a/helper", "b/test_c", "left/test_d", "test_e")
    for name in names:
        path = tmp_path / "tests" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    found = [str(file.relative_to(tmp_path)) for file in files_to_collect(config_of(tmp_path, "tests"))]
    assert found == ["tests/a/test_a.py", "tests/a/test_b.py", "tests/test_e.py"]
    (one,) = files_to_collect(config_of(tmp_path, "tests/a/test_b.py::test_it", "tests/b"))
    assert one == tmp_path / "tests/a/test_b.py"

    imported: list[str] = []

    def record(name: str) -> None:
        imported.append(name)
        raise ImportError(name)

    monkeypatch.setattr("tests.support.collecting.importlib.import_module", record)
    import_share(config_of(tmp_path, "tests"))
    assert imported == [], "a process alone collects in the usual order"
    for number in range(2):
        share = {"workerid": f"gw{number}", "workercount": 2}
        import_share(config_of(tmp_path, "tests", workerinput=share))
    assert imported == ["tests.a.test_a", "tests.test_e", "tests.a.test_b"]
