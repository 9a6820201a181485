"""Starts real API and engine processes, like `python -m api.main` and `-m engine.main` but already imported.

See `tests.support.nursery`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.nursery import SERVICES, Forked, Nursery

# With what they import while they start.
_null_engines = Nursery("engine.main", "engine.null_runner")
_model_engines = Nursery("engine.main", "engine.assembly")


def start_api(log: Path, environment: Mapping[str, str]) -> Forked:
    """Start `python -m api.main`, with its output appended to `log`."""
    return SERVICES.start("tests.support.servers:run_api", log, environment)


def start_engine(
    log: Path, environment: Mapping[str, str], arguments: Sequence[str] = (), *, with_torch: bool = False
) -> Forked:
    """Start `python -m engine.main ARGUMENTS`; `with_torch`: it serves a model."""
    engines = _model_engines if with_torch else _null_engines
    return engines.start("tests.support.servers:run_engine", log, environment, arguments)


def run_api() -> int:
    from api.main import run
    from api.settings import ApiSettings

    return run(ApiSettings())  # type: ignore[call-arg]


def run_engine() -> int:
    from engine.main import main

    return main(sys.argv[1:])
