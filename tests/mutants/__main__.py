"""Plants each listed defect in a copy of the tree, runs the tests that should notice it, and reports those
that none noticed. Fails below 95 %, or when a list no longer fits the code.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

from tests.mutants.catalogue import Mutant, load
from tests.mutants.running import Tree

ROOT = Path(__file__).resolve().parents[2]
REQUIRED = 0.95
PASSED, FAILED = 0, 1
"""Exit codes of pytest; any other says that the tests did not run."""

Outcome = Literal["noticed", "survived", "broken"]


@dataclass(frozen=True, slots=True)
class Result:
    mutant: Mutant
    outcome: Outcome
    seconds: float
    said: str
    """The last lines of pytest where the tests did not run; the test that failed where one did."""


def judge(tree: Tree, mutant: Mutant) -> Result:
    """Whether the mutant's tests notice it."""
    began = time.monotonic()
    source = (tree.root / mutant.path).read_text()
    with tree.changed(mutant.path, mutant.planted(source)):
        code, said = tree.run(mutant.tests)
    seconds = time.monotonic() - began
    if code in (None, FAILED):
        failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR", "longer than"))]
        return Result(mutant, "noticed", seconds, " ".join(failed[:1])[:200])
    if code == PASSED:
        return Result(mutant, "survived", seconds, "")
    return Result(mutant, "broken", seconds, "\n".join(said.splitlines()[-8:]))


def failing_baselines(trees: SimpleQueue[Tree], mutants: Sequence[Mutant], jobs: int) -> list[str]:
    """Selections of tests that fail without any defect: what they say of a mutant would mean nothing."""

    def failure(tests: tuple[str, ...]) -> str | None:
        tree = trees.get()
        try:
            code, said = tree.run(tests)
        finally:
            trees.put(tree)
        return None if code == PASSED else f"{' '.join(tests)}:\n" + "\n".join(said.splitlines()[-8:])

    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(failure, dict.fromkeys(mutant.tests for mutant in mutants))
    return [each for each in found if each is not None]


def judge_all(
    trees: SimpleQueue[Tree], mutants: Sequence[Mutant], jobs: int, tell: Callable[[Result], None]
) -> list[Result]:
    def one(mutant: Mutant) -> Result:
        tree = trees.get()
        try:
            result = judge(tree, mutant)
        finally:
            trees.put(tree)
        tell(result)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, mutants))


def table(results: Sequence[Result]) -> str:
    """Noticed of planted, by area."""
    lines = [f"{'area':<12}{'planted':>9}{'noticed':>9}{'share':>8}"]
    for area in [*dict.fromkeys(result.mutant.area for result in results), "all"]:
        of_area = [result for result in results if area in ("all", result.mutant.area)]
        noticed = sum(result.outcome == "noticed" for result in of_area)
        lines.append(f"{area:<12}{len(of_area):>9}{noticed:>9}{noticed / len(of_area):>8.1%}")
    return "\n".join(lines)


def document(results: Sequence[Result]) -> dict[str, object]:
    noticed = sum(result.outcome == "noticed" for result in results)
    return {
        "planted": len(results),
        "noticed": noticed,
        "mutants": [
            {
                "area": result.mutant.area,
                "file": result.mutant.path,
                "old": result.mutant.old,
                "new": result.mutant.new,
                "outcome": result.outcome,
                "seconds": round(result.seconds, 1),
                "said": result.said,
            }
            for result in results
        ],
    }


def not_noticed(mutants: Sequence[Mutant], earlier: Path) -> list[Mutant]:
    """Those that an earlier run did not notice, and those that it did not have."""
    outcomes = json.loads(earlier.read_text())["mutants"]
    noticed = {(one["file"], one["old"], one["new"]) for one in outcomes if one["outcome"] == "noticed"}
    return [mutant for mutant in mutants if (mutant.path, mutant.old, mutant.new) not in noticed]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--area", action="append", help="only this list, such as quotas; again for more")
    parser.add_argument("--only", default="", help="only defects whose file or text has this in it")
    parser.add_argument("--again", type=Path, help="only those not noticed in an earlier run's JSON")
    parser.add_argument("--jobs", type=int, default=2, help="defects tried at once (2)")
    parser.add_argument("--out", type=Path, help="write every outcome there as JSON")
    parser.add_argument("--check", action="store_true", help="only see whether the lists fit the code")
    options = parser.parse_args()
    mutants = [
        mutant
        for mutant in load()
        if (not options.area or mutant.area in options.area) and options.only in mutant.title
    ]
    if options.again is not None:
        mutants = not_noticed(mutants, options.again)
    misfits = [f"{mutant.title}\n    {problem}" for mutant in mutants if (problem := mutant.problem(ROOT))]
    if misfits or not mutants:
        print("These defects no longer fit the code; update tests/mutants/*.toml:", *misfits, sep="\n")
        return 1
    if options.check:
        print(f"{len(mutants)} defects fit the code")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(options.jobs):
            trees.put(Tree.copied(ROOT, Path(directory, str(number))))
        failing = failing_baselines(trees, mutants, options.jobs)
        if failing:
            print("These tests fail without any defect:", *failing, sep="\n")
            return 1
        results = judge_all(trees, mutants, options.jobs, _tell)
    if options.out is not None:
        options.out.write_text(json.dumps(document(results), indent=1) + "\n")
    print(table(results))
    for result in results:
        if result.outcome != "noticed":
            print(f"{result.outcome}: {result.mutant.area}: {result.mutant.title}\n{result.said}".rstrip())
    share = sum(result.outcome == "noticed" for result in results) / len(results)
    return 0 if share >= REQUIRED else 1


def _tell(result: Result) -> None:
    print(f"{result.outcome:<9}{result.seconds:6.1f} s  {result.mutant.title[:150]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
