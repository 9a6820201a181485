"""Mains of the three processes: settings from the environment in, an exit out. Each imports only its own
world.
"""

from __future__ import annotations

import sys


def serve_engine() -> None:
    from engine.main import run
    from engine.settings import EngineSettings

    sys.exit(run(EngineSettings()))
