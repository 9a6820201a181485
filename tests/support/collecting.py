"""Makes collecting tests cheaper where several processes collect the same ones, each all of them.

Most of the time is that of imports: test processes are forks of one that has imported all files of tests, as
pytest would have, with their assertions rewritten. And nothing that collection makes becomes garbage: to
collect garbage meanwhile is a fifth of its time, and with Python's default thresholds a tenth of the tests'.
"""

from __future__ import annotations

import gc
import importlib
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from _pytest.config import _prepareconfig
from execnet.gateway_io import popen_bootstrapline

from tests.support import forks

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


def fork_test_processes(config: pytest.Config) -> None:
    """Test processes that pytest-xdist starts from now on are forks of one that has imported all tests."""
    channel = forks.start_zygote(config.rootpath, ["-m", __name__], config.invocation_params.args)
    forks.Starter(lambda root: channel, is_forked=_is_test_process).install()


def _is_test_process(words: Sequence[str]) -> bool:
    """Whether this is the command with which execnet starts a Python."""
    return words[0] == sys.executable and words[-1] == popen_bootstrapline


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


def import_tests(arguments: Sequence[str]) -> None:
    """Imports the files that pytest would with these arguments, as it does."""
    config = _prepareconfig([*arguments], None)  # rewrites assertions from here on
    with warnings.catch_warnings(action="ignore"):  # of imports before a session: none is to come
        for file in files_to_collect(config):
            name = ".".join(file.relative_to(config.rootpath).with_suffix("").parts)
            with suppress(Exception, pytest.skip.Exception):  # collection reports it
                importlib.import_module(name)
        # Hypothesis reads the source of every module. Its own may be imported only now.
        from hypothesis.internal.conjecture.providers import _get_local_constants

        _get_local_constants()
    config._ensure_unconfigure()


if __name__ == "__main__":
    with forks.importing():
        import_tests(sys.argv[2:])
    forks.serve(socket.socket(fileno=int(sys.argv[1])))()
