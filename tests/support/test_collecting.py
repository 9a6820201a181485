"""Collecting in several processes: they begin with all files imported; garbage is collected later."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.collecting import (
    COLLECT_AFTER,
    files_to_collect,
    fork_test_processes,
    without_garbage_collection,
)
from tests.support.forks import ROOT


def config_of(root: Path, *arguments: str, **others: Any) -> Any:
    return SimpleNamespace(
        args=arguments,
        rootpath=root,
        invocation_params=SimpleNamespace(dir=root, args=arguments),
        getini=lambda name: {"norecursedirs": ["left"]}[name],
        getoption=lambda name: {"ignore": ["tests/b"]}[name],
        **others,
    )


def test_no_file_of_tests_changes_for_others_how_many_threads_compute() -> None:
    """Every test process imports all files, also of tests that it leaves out. Where more threads compute than
    cores are free, they mostly spin.
    """
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])


def test_garbage_is_collected_again_afterwards() -> None:
    with without_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_threshold() == COLLECT_AFTER


def test_the_files_to_collect_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_test_processes_begin_with_the_tests_imported_as_pytest_imports_them() -> None:
    before = subprocess._fork_exec  # type: ignore[attr-defined]
    fork_test_processes(config_of(ROOT, "tests/support/test_collecting.py"))
    try:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    finally:
        subprocess._fork_exec = before  # type: ignore[attr-defined]
    is_hooked = "any('Rewriting' in type(one).__name__ for one in sys.meta_path)"
    asked = f"print(__name__, sys.argv, '@pytest_ar' in vars(sys.modules[{__name__!r}]), {is_hooked})"
    told, _ = process.communicate(f"{asked!r}\n".encode(), 60)
    assert process.returncode == 0
    assert told.decode().split() == ["__main__", "['-c']", "True", "False"], (
        "assertions are rewritten, by a hook that is gone: pytest will have its own"
    )
