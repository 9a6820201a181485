"""Writes `weights/base/calibration.jsonl`: the default samples for calibrating an adapter on Sapling.

    python -m examples.sapling.write_calibration

The conversations are held out of all training, and drawn with another seed than those that accuracy is
measured on. The base's digest does not include the file.
"""

from __future__ import annotations

import json
from pathlib import Path

from .tasks import TASKS

OUT = Path(__file__).with_name("weights") / "base" / "calibration.jsonl"
PER_TASK = 6
SEED = 4
"""Differs from the evaluation's seed."""


def lines() -> list[str]:
    """Yields one conversation of each task in turn, so that any prefix of the file contains all tasks."""
    tasks = [task.examples("heldout", PER_TASK, seed=SEED) for task in TASKS.values()]
    return [
        json.dumps(
            {
                "messages": [
                    {"role": "user", "content": example.prompt},
                    {"role": "assistant", "content": example.answer},
                ]
            },
            ensure_ascii=False,
        )
        for row in zip(*tasks, strict=True)
        for example in row
    ]


def main() -> None:
    OUT.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
    print(f"{len(lines())} conversations in {OUT}")


if __name__ == "__main__":
    main()
