"""Makes collecting tests cheaper where several processes collect the same ones, each all of them.

Nothing that collection makes becomes garbage: collecting garbage meanwhile is a fifth of its time, and with
Python's default thresholds a tenth of the tests' own. And in a fresh checkout every process would compile
every file of tests, which takes longer than to load them: each imports a share of its own first, and finds
the others' compiled.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

COLLECT_AFTER = (10_000, 20, 20)
"""Thresholds of the garbage collector while tests run. Later imports, caches and documents make the heap so
large that a full collection takes up to a second and a half; Python's defaults begin one every few tests.
"""


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Leave what was made within to no later collection either: it stays until the process ends. Collect more
    rarely afterwards.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*COLLECT_AFTER)
        gc.enable()


def import_share(config: pytest.Config) -> None:
    """Import this process's share of the files to collect; collection reports what fails to import."""
    process = getattr(config, "workerinput", None)
    if process is None:
        return
    number, count = int(process["workerid"].removeprefix("gw")), process["workercount"]
    for file in files_to_collect(config)[number::count]:
        name = ".".join(file.relative_to(config.rootpath).with_suffix("").parts)
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


def files_to_collect(config: pytest.Config) -> list[Path]:
    """Files of tests under the arguments, without those that options leave out."""
    left_out = [Path(path).absolute() for path in config.getoption("ignore") or ()]
    names = set(config.getini("norecursedirs"))
    found = set[Path]()
    for argument in config.args:
        path = config.invocation_params.dir / argument.partition("::")[0]
        found.update([path] if path.is_file() else path.rglob("test_*.py"))
    return sorted(
        file
        for file in found
        if not any(file.is_relative_to(path) for path in left_out)
        and names.isdisjoint(file.relative_to(config.rootpath).parts)
    )
