"""Reads the lists of planted defects: one TOML file per area, one table per source file.

    [[file]]
    path = "billing/rates.py"
    tests = ["tests/billing/test_pricing.py"]   # what should notice
    mutants = [["old text", "new text"], ...]

The old text must occur exactly once in the file, so that a list that no longer fits the code is reported
instead of testing nothing.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect: `old` becomes `new` in `path`, and one of `tests` should fail."""

    area: str
    path: str
    tests: tuple[str, ...]
    old: str
    new: str

    @property
    def title(self) -> str:
        """The defect in one line."""
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.path}: {old}  ->  {new}"

    def problem(self, root: Path) -> str | None:
        """Why the defect cannot be planted in the tree at `root`; None when it can."""
        source = root / self.path
        if not source.is_file():
            return "no such file"
        count = source.read_text().count(self.old)
        if count != 1:
            return f"the old text occurs {count} times, not once"
        missing = [test for test in self.tests if not (root / test.partition("::")[0]).exists()]
        if missing or not self.tests:
            return f"no such tests: {', '.join(missing)}"
        return None

    def planted(self, source: str) -> str:
        """The file's text with the defect."""
        return source.replace(self.old, self.new)


def load(folder: Path = FOLDER) -> list[Mutant]:
    """All defects, by area and file in the order of the lists. Raises ValueError naming the list."""
    mutants = []
    for path in sorted(folder.glob("*.toml")):
        document = tomllib.loads(path.read_text())
        for entry in document["file"]:
            for pair in entry["mutants"]:
                if len(pair) != 2 or pair[0] == pair[1]:
                    raise ValueError(f"{path.name}: {pair!r} must be an old and a different new text")
                mutants.append(Mutant(path.stem, entry["path"], tuple(entry["tests"]), *pair))
    return mutants
