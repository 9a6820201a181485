"""Checks that docstrings, comments, messages, templates and documents use plain words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "adapters",
    "admin",
    "api",
    "batches",
    "benchmarks",
    "billing",
    "cli",
    "conversations",
    "db",
    "engine",
    "examples",
    "kernels",
    "migrations",
    "retention",
    "routing",
    "sla",
    "telemetry",
    "tenants",
    "tokenization",
    "worker",
)
WITHOUT_CODE = {"kernels/__init__.py"}
"""PEFT and transformers probe for a package called `kernels` and execute what they find."""

BANNED = re.compile(
    r"""\b(?:
        who(?:m|so)?ever | nobody(?![`"']) | somebody | those\ who | refus(?:es|ing)\ to\ know
      | what\ (?:it|they|this|that)\ comes?\ to | (?:is|are|was|were)\ told
      | (?:is|are|was|were)\ let\ in(?:to)? | at\ its\ door
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
VERB = re.compile(r"[A-Z][a-z]+(?:s|es)\b(?!,)")
"""Third person: "Plans the next step", "Reads settings"."""
NOUNS = frozenset((Path(__file__).parent / "plural_nouns.txt").read_text().split())
"""Words that only look like verbs."""
VERBS_TOO = re.compile(
    r"(?:Bills|Charges|Counts|Exports|Limits|Measures|Names|Previews|Queries|Records|Reports|Routes|Scores|Sums)\b"
    r"(?! (?:and|as|at|between|by|for|from|in|of|on|over|that|to|with)\b)"
)
"""Nouns that are verbs unless one of these words follows: "Queries invoices", not "Queries on invoices"."""
RELEASED = frozenset(
    line.split()[1] for line in (ROOT / "migrations" / "released.txt").read_text().splitlines() if line
)
"""Migrations that are never edited again."""
BUILT = ROOT / "api" / "site" / "built"
"""The documentation as `make docs` leaves it, with scripts of others."""
TRAINING_TEXT = ROOT / "examples" / "sapling"
"""Its strings are what the packaged model was trained on; its docstrings and comments are checked."""


def python_files(package: str) -> Iterator[Path]:
    for path in sorted((ROOT / package).rglob("*.py")):
        if "__pycache__" not in path.parts:
            yield path


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Comments and string literals of a Python file, each with its first line."""
    is_trained_on = path.is_relative_to(TRAINING_TEXT)
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        is_data = token.type == tokenize.STRING and not token.string.startswith('"""')
        if token.type in (tokenize.COMMENT, tokenize.STRING) and not (is_data and is_trained_on):
            yield token.start[0], token.string


def banned_in(text: str) -> list[str]:
    return [found.group(0) for found in BANNED.finditer(" ".join(text.split()))]


def opening(path: Path) -> str:
    """The first sentence of a module's docstring, on one line."""
    docstring = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
    return re.split(r"(?<=[.:;])\s", docstring, maxsplit=1)[0]


def is_sentence(sentence: str) -> bool:
    """Whether it opens with a route or command in backticks, or with a verb in the third person."""
    word = VERB.match(sentence)
    return (
        sentence.startswith("`")
        or VERBS_TOO.match(sentence) is not None
        or (word is not None and word.group(0) not in NOUNS)
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_code_uses_plain_words(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {', '.join(words)}"
        for path in python_files(package)
        if path.name not in RELEASED
        for line, text in texts(path)
        if (words := banned_in(text))
    ]
    found += [
        f"{path.relative_to(ROOT)}: {', '.join(words)}"
        for path in sorted((ROOT / package).rglob("*"))
        if path.suffix in (".html", ".js", ".lua", ".txt", ".md")
        and BUILT not in path.parents
        and (words := banned_in(path.read_text()))
    ]
    assert not found, (
        "name the thing (client, caller, tenant, request) and use the active verb:\n" + "\n".join(found)
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_open_with_a_sentence_that_says_what_they_do(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {opening(path) or 'no docstring'}"
        for path in python_files(package)
        if path.name not in ("__init__.py", "__main__.py")
        and path.parent.name != "versions"
        and not is_sentence(opening(path))
    ]
    assert not found, 'open with a verb ("Plans the next engine step: ..."):\n' + "\n".join(found)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_in_one_line_what_it_is_for(package: str) -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in python_files(package)
        if path.name == "__init__.py"
        and str(path.relative_to(ROOT)) not in WITHOUT_CODE
        and not (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0].endswith(".")
    ]
    assert not found


def test_documents_use_plain_words() -> None:
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    found = [
        f"{path.relative_to(ROOT)}: {', '.join(words)}"
        for path in documents
        if "adr" not in path.parts and (words := banned_in(path.read_text()))
    ]
    assert not found


def test_the_check_notices_what_it_is_for(tmp_path: Path) -> None:
    odd, plain = tmp_path / "odd.py", tmp_path / "plain.py"
    odd.write_text('"""What is done once an answer is out."""\nX = "nobody waits"  # whoever sends\n')
    plain.write_text('"""Plans the next engine step: which requests run."""\nX = "no client waits"\n')
    assert [words for _, text in texts(odd) for words in banned_in(text)] == ["nobody", "whoever"]
    assert not [words for _, text in texts(plain) for words in banned_in(text)]
    assert not is_sentence(opening(odd))
    assert not is_sentence("Queries on invoices.")
    assert is_sentence("Queries invoices.")
    assert is_sentence(opening(plain))
