"""Writes `weights/base/calibration.jsonl`: what an adapter on Sapling is measured with by default.

    python -m examples.sapling.write_calibration

Owns how many conversations of each task there are. They are held out of all training, and from other draws
than those that accuracy is measured on. The base's digest does not cover the file.
"""

from __future__ import annotations

import json
from pathlib import Path

from .tasks import TASKS

OUT = Path(__file__).with_name("weights") / "base" / "calibration.jsonl"
PER_TASK = 6
SEED = 4
"""Not that of the evaluation."""


def lines() -> list[str]:
    """One conversation each, the tasks in turn: any beginning of the file is of all of them."""
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
