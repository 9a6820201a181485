"""What the documents point to exists: links, anchors, paths of the repository, targets of make, commands.

Nothing is fetched: links to other servers are not looked at.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cli.main import app
from docs.site.build import links_in
from tests.shipping.checkout import ROOT, tracked_files

FILES = tracked_files()
PAGES = sorted(
    name
    for name in FILES
    if name.endswith(".md") and (name.startswith("docs/") or "/" not in name or name.startswith("kernels/"))
)
HISTORY = ("docs/adr/", "CHANGELOG.md")
"""These say what was so at their time: of them links are checked, but not what they name."""
CURRENT = [name for name in PAGES if not name.startswith(HISTORY)]
_FENCED = re.compile(r"^ *```.*?^ *```[^\n]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`]+)`")
_TOP = {name.split("/")[0] for name in FILES if "/" in name}
_PATH = re.compile(rf"(?:{'|'.join(sorted(map(re.escape, _TOP)))})/[\w./{{}},<>*-]*")
_FILE = re.compile(r"[a-z_0-9]+\.(?:py|lua|html|css|js|toml)")


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def code_in(page: str) -> Iterator[str]:
    """Every code span, and every line of a code block."""
    text = text_of(page)
    for block in _FENCED.findall(text):
        yield from block.splitlines()[1:-1]
    for span in _CODE.findall(_FENCED.sub("", text)):
        yield " ".join(span.split())


@cache
def anchors(page: str) -> frozenset[str]:
    """Those of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", text_of(page)), re.MULTILINE)
    kept = [re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower() for heading in headings]
    return frozenset(re.sub(r"[\s]", "-", heading) for heading in kept)


@cache
def places() -> frozenset[str]:
    """Every tracked file, and every folder of one."""
    folders = {str(parent) for name in FILES for parent in Path(name).parents}
    return frozenset(FILES) | folders


def expanded(pattern: str) -> list[str]:
    """`a/{b,c}.py` as a/b.py and a/c.py; `<op>` stands for any name."""
    parts = re.split(r"\{([^}]*)\}", re.sub(r"<\w+>", "*", pattern))
    choices = [part.split(",") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(chosen) for chosen in product(*choices)]


def exists(path: str) -> bool:
    path = posixpath.normpath(path)
    return any(fnmatch.fnmatchcase(place, path) for place in places()) if "*" in path else path in places()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    broken = [
        f"{path}{anchor}"
        for path, anchor in links_in(text_of(page), page)
        if not exists(path) or (anchor and path.endswith(".md") and anchor[1:] not in anchors(path))
    ]
    broken += [
        f"#{anchor}"
        for anchor in re.findall(r"\]\(#([^)]+)\)", _FENCED.sub("", text_of(page)))
        if anchor not in anchors(page)
    ]
    assert not broken


@pytest.mark.parametrize("page", PAGES)
def test_every_column_of_a_table_has_a_name(page: str) -> None:
    """Screen readers say it with every cell."""
    headers = re.findall(r"^(\|.*\|)\n\|(?: *:?-+:? *\|)+$", _FENCED.sub("", text_of(page)), re.MULTILINE)
    assert [header for header in headers if "" in (cell.strip() for cell in header[1:-1].split("|"))] == []


@pytest.mark.parametrize("page", CURRENT)
def test_every_path_that_is_named_exists(page: str) -> None:
    folder, names = posixpath.dirname(page), {posixpath.basename(name) for name in FILES}
    missing = []
    for code in code_in(page):
        for found in _PATH.finditer(code):
            if found.start() and code[found.start() - 1] in "/.-_\\w~":
                continue  # a part of some other path or address
            named = expanded(found[0].rstrip(".,:"))
            missing += [path for path in named if not exists(path) and not exists(f"{folder}/{path}")]
        if _FILE.fullmatch(code) and code not in names:
            missing.append(code)
    assert not missing


@pytest.mark.parametrize("page", CURRENT)
def test_every_target_of_make_exists(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    named = {name for code in code_in(page) for name in re.findall(r"\bmake ([a-z][a-z0-9-]*)", code)}
    assert not named - targets


@cache
def commands() -> Any:
    """Built once: that takes Typer 30 ms of CPU."""
    return get_command(app)


@pytest.mark.parametrize("page", CURRENT)
def test_every_command_exists(page: str) -> None:
    unknown = [
        line
        for code in code_in(page)
        for line in re.findall(r"^(?:[A-Z_]+=\S+ )*rootstock( [a-z][^#]*)", code)
        if not is_command(commands(), line.split())
    ]
    assert not unknown


@pytest.mark.parametrize("page", CURRENT)
def test_every_module_that_is_run_exists(page: str) -> None:
    modules = {name for code in code_in(page) for name in re.findall(r"python3? -m ([\w.]+)", code)}
    ours = {name.replace(".", "/") for name in modules if name.split(".")[0] in _TOP}
    assert not {name for name in ours if not exists(f"{name}.py") and not exists(f"{name}/__main__.py")}


def is_command(command: Any, words: list[str]) -> bool:
    """Whether the words name commands as far as they are names of commands: `tenant create|list NAME`."""
    commands = getattr(command, "commands", None)  # of a group; Typer may bring a click of its own
    if commands is None or not words or not words[0][0].islower():
        return True
    named = [commands.get(word.rstrip(":,.")) for word in words[0].split("|")]
    return all(one is not None and is_command(one, words[1:]) for one in named)


def test_the_checks_see_what_is_wrong() -> None:
    known = commands()
    assert is_command(known, ["tenant", "create|list", "ACME"])
    assert not is_command(known, ["tenant", "create|banish", "ACME"])
    assert not is_command(known, ["serve"])
    assert exists("kernels/*/README.md")
    assert exists("engine")
    assert not exists("engine/nothing.py")
    assert expanded("a/{b,c}/<op>.py") == ["a/b/*.py", "a/c/*.py"]
    assert "1-postgresql" in anchors("docs/install.md")
