"""Builds the documentation site: Markdown in, a folder of static files out.

    python docs/site/build.py [FOLDER]

The pages are those of `docs/`, the changelog and the contributors' guide, and whatever file of the repository
one of them links to. Zensical renders them; a link that leads nowhere stops the build. `make docs` runs this
in a checkout and `setup.py` while a wheel is built, so it imports nothing but the standard library and
Zensical's command.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "api" / "site" / "built"
"""Where the service looks for it; git ignores it."""
HERE = ROOT / "docs" / "site"
EXTRA_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md")
CONSOLE_STYLES = ROOT / "admin" / "static" / "console.css"
MARK = ROOT / "admin" / "static" / "mark.svg"
TIMEOUT = 120.0

_LINK = re.compile(r"(?<=\]\()(?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
_FENCED = re.compile(r"(^ *```.*?^ *```[^\n]*$)", re.MULTILINE | re.DOTALL)


class BrokenLink(Exception):
    """A page links to a file that is not in the repository."""


def build(output: Path = OUTPUT) -> None:
    """Replaces `output` by the built site.

    Raises:
        BrokenLink: a page links to a file that is not there.
        subprocess.CalledProcessError: Zensical has refused the pages; it has printed why.
    """
    with tempfile.TemporaryDirectory() as folder:
        stage = Path(folder)
        write_sources(stage / "pages")
        shutil.copy2(HERE / "zensical.toml", stage)
        environment = os.environ | {"NO_COLOR": "1"}
        command = [zensical(), "build", "--strict", "--clean"]
        subprocess.run(command, cwd=stage, env=environment, check=True, timeout=TIMEOUT)
        shutil.rmtree(output, ignore_errors=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(stage / "site", output)


def zensical() -> str:
    """Returns the command's path: beside this interpreter, as in a virtual environment, or on PATH."""
    beside = Path(sys.executable).with_name("zensical")
    return str(beside) if beside.exists() else "zensical"


def write_sources(folder: Path) -> None:
    """Writes the pages, with their links rewritten for the site, and every file that they link to."""
    waiting = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    waiting += EXTRA_PAGES
    seen = set(waiting)
    while waiting:
        source = waiting.pop()
        target = folder / place_of(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not source.endswith(".md"):
            shutil.copy2(ROOT / source, target)
            continue
        text = (ROOT / source).read_text()
        linked = {path for path, _ in links_in(text, source)}
        missing = [path for path in sorted(linked) if not (ROOT / path).is_file()]
        if missing:
            raise BrokenLink(f"{source} links to {', '.join(missing)}: not a file of the repository")
        target.write_text(rewrite_links(text, source))
        waiting += sorted(linked - seen)
        seen |= linked
    (folder / "adr" / "index.md").write_text(decisions())
    (folder / "assets").mkdir(exist_ok=True)
    shutil.copy2(MARK, folder / "assets" / "mark.svg")
    colours = colour_roles(CONSOLE_STYLES.read_text())
    (folder / "assets" / "theme.css").write_text(colours + (HERE / "theme.css").read_text())
    shutil.copy2(HERE / "accessibility.js", folder / "assets")


def decisions() -> str:
    """Returns a page that lists the decisions by number; on GitHub the folder itself is that list."""
    lines = [
        "# Decisions",
        "",
        "Each is half a page: the context, the options, what was chosen, and what follows.",
        "",
    ]
    for path in sorted((ROOT / "docs" / "adr").glob("[0-9]*.md")):
        title = path.read_text().split("\n", 1)[0].lstrip("# ")
        lines.append(f"- [{title.replace('. ', ' ', 1)}]({path.name})")
    return "\n".join(lines) + "\n"


def place_of(source: str) -> str:
    """Returns where a file of the repository lies in the site: the pages of `docs/` at the top, others below
    their own path.
    """
    return source.removeprefix("docs/")


def links_in(text: str, source: str) -> Iterator[tuple[str, str]]:
    """Yields the path in the repository, and the anchor, of every relative link outside of code blocks."""
    for prose in _FENCED.split(text)[::2]:
        for found in _LINK.finditer(prose):
            if not _is_external(found["target"]):
                yield _resolve(found["target"], source), found["anchor"] or ""


def rewrite_links(text: str, source: str) -> str:
    """Returns the page's text with every relative link leading to the file's place in the site."""
    folder = posixpath.dirname(place_of(source))

    def rewritten(found: re.Match[str]) -> str:
        if _is_external(found["target"]):
            return found[0]
        place = place_of(_resolve(found["target"], source))
        return posixpath.relpath(place, folder or ".") + (found["anchor"] or "")

    parts = _FENCED.split(text)
    parts[::2] = [_LINK.sub(rewritten, prose) for prose in parts[::2]]
    return "".join(parts)


def colour_roles(styles: str) -> str:
    """Returns the console's custom properties, in light and in dark, so that site and console look alike."""
    light = re.search(r"^:root \{.*?^\}\n", styles, re.MULTILINE | re.DOTALL)
    dark = re.search(r"^@media \(prefers-color-scheme: dark\) \{\n  :root \{(.*?)\n  \}", styles, re.M | re.S)
    if light is None or dark is None:
        raise ValueError(f"{CONSOLE_STYLES} has no colour roles in :root: look at docs/site/build.py")
    return f"{light[0]}[data-md-color-scheme=slate] {{{dark[1]}\n}}\n"


def _is_external(target: str) -> bool:
    return target.startswith(("http:", "https:", "mailto:", "/"))


def _resolve(target: str, source: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def main() -> int:
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT
    try:
        build(output)
    except FileNotFoundError as error:
        print(f"{error.filename} is missing: run `make docs`, which installs it", file=sys.stderr)
        return 1
    except (BrokenLink, subprocess.CalledProcessError) as error:
        print(f"the documentation was not built: {error}", file=sys.stderr)
        return 1
    print(f"documentation: {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
