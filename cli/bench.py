"""Lists and runs benchmarks by name; their descriptions are the modules' own docstrings."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

from cli.errors import UsageError

CHECKOUT = Path(__file__).resolve().parent.parent


def list_benchmarks() -> list[tuple[str, str]]:
    """Returns name and first line of the docstring of every runnable module of `benchmarks`."""
    found = []
    for path in sorted((CHECKOUT / "benchmarks").glob("*.py")):
        source = path.read_text(encoding="utf-8")
        if '__name__ == "__main__"' in source:
            summary = (ast.get_docstring(ast.parse(source)) or "").split("\n", 1)[0]
            found.append((path.stem, summary))
    return found


def run_benchmark(name: str, arguments: list[str]) -> int:
    """Runs a benchmark in its own process; returns its exit status. Raises `UsageError` if it is unknown."""
    known = [known for known, _ in list_benchmarks()]
    if name not in known:
        raise UsageError(f"no benchmark called {name!r}; there are {', '.join(known) or 'none'}")
    # A search path, not a working directory: a relative --out is relative to the operator's directory.
    search = os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": search}).returncode
