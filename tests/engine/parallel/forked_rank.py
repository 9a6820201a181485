"""Ranks as forks of a process that has imported what they need: the start of a program takes over a second of
CPU. `test_losses` has ranks that start by themselves.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine.parallel import rank
from engine.parallel.messages import RankTask
from tests.support.nursery import Forked, Nursery

RANKS = Nursery("engine.parallel.rank")


def start(task: RankTask, program: Sequence[str]) -> Forked:
    """As `engine.parallel.ranks` starts one."""
    arguments = [msgspec.json.encode(task).decode()]
    return RANKS.start(f"{__name__}:main", Path(os.devnull), os.environ, arguments)


def main() -> int:
    task = msgspec.json.decode(sys.argv[1], type=RankTask)
    # It ends with its parent, which is the process that has forked it.
    given = msgspec.json.encode(msgspec.structs.replace(task, parent=os.getppid()))
    sys.stdin = io.TextIOWrapper(io.BytesIO(given))
    return rank.main()
