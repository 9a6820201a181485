"""Runs tests in a copy of the tree, each selection in a fork of a process that has loaded the libraries."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

LIMIT_S = 240.0
"""For one run of tests; a defect that makes them take longer is noticed."""
LIBRARIES = [
    "alembic.command",
    "argon2",
    "celery",
    "cryptography.hazmat.primitives.ciphers.aead",
    "fastapi",
    "httpx",
    "hypothesis.strategies",
    "jinja2",
    "msgspec",
    "numpy",
    "obstore",
    "prometheus_client",
    "psycopg",
    "pydantic_settings",
    "pytest",
    "redis.asyncio",
    "requests",
    "rich",
    "schemathesis",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.ext.asyncio",
    "starlette.applications",
    "structlog",
    "tokenizers",
    "uvicorn",
    "zmq.asyncio",
]
"""Loaded once: most of a small run of tests would be loading them."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(LIBRARIES)


class Tree:
    """A copy of the working tree, in which a file may be changed for a while."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def copied(cls, source: Path, target: Path) -> Tree:
        """The tracked files of `source`, and those that git does not ignore."""
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"],
            cwd=source,
            capture_output=True,
            check=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (source / name).is_file():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source / name, target / name)
        # By content, not by time: a file that changes twice within a second is compiled twice.
        checked = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "-x", "/tests/", "."]
        subprocess.run([sys.executable, *checked], cwd=target, check=True)
        return cls(target)

    @contextmanager
    def changed(self, path: str, text: str) -> Iterator[None]:
        file = self.root / path
        before = file.read_text()
        file.write_text(text)
        try:
            yield
        finally:
            file.write_text(before)

    def run(self, tests: Sequence[str]) -> tuple[int | None, str]:
        """The exit code of pytest, None after LIMIT_S, and what it said."""
        output = self.root.with_name(f"{self.root.name}.out")
        process = _context.Process(target=_run_tests, args=(self.root, list(tests), output))
        process.start()
        process.join(LIMIT_S)
        code = process.exitcode
        with suppress(ProcessLookupError, PermissionError):  # with the servers that it may have left behind
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        if code is None:
            return None, f"longer than {LIMIT_S:g} s"
        return code, output.read_text(errors="replace")


def _run_tests(root: Path, tests: list[str], output: Path) -> None:
    """In a process of its own: pytest over the tree at `root`."""
    import pytest

    os.setsid()
    fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(root)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # this module's own package is that of the other tree
    sys.path.insert(0, str(root))
    options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=line", "-p", "tests.mutants.profile"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plugins among the libraries
    code = pytest.main([*options, *tests])
    sys.stdout.flush()
    os._exit(code)
