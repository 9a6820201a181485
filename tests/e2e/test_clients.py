"""The examples of docs/clients.md, as they stand on the page, print what their comments say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.programs import CHECKOUT
from tests.clients import environments
from tests.e2e.stack import Stack
from tests.support import node

PAGE = (CHECKOUT / "docs/clients.md").read_text()
RUN_S = 120


@dataclass(frozen=True)
class Example:
    """A code block of the page."""

    language: str
    code: str

    @property
    def printed(self) -> list[str]:
        """The lines that its comments promise."""
        return re.findall(r"^(?:print|console\.log)\(.*\);? +(?:#|//) (.*)$", self.code, re.MULTILINE)


EXAMPLES = {
    heading: Example(language, code)
    for heading, section in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    for language, code in re.findall(r"^```(python|js)\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
}


def own_python(name: str) -> Callable[[], tuple[list[str], Path]]:
    return lambda: ([str(environments.python(name)), "-"], CHECKOUT / "var")


def our_python() -> tuple[list[str], Path]:
    return [sys.executable, "-"], CHECKOUT / "var"


def on_node() -> tuple[list[str], Path]:
    program = node.find()
    if program is None:
        (pytest.fail if node.is_required() else pytest.skip)(node.MISSING)
    return [program, "--input-type=module", "-"], environments.node()


PROGRAMS = {
    "openai, Python": our_python,
    "openai, Node": on_node,
    "openai-agents": our_python,
    "LangChain": own_python("langchain"),
    "pydantic-ai": own_python("pydantic-ai"),
    "instructor": own_python("instructor"),
    "Vercel AI SDK": on_node,
}
"""What reads the example of a section from its standard input, and where."""


def test_every_example_is_run() -> None:
    assert set(EXAMPLES) == set(PROGRAMS)
    assert PAGE.count("```") == 2 * len(EXAMPLES), "a section has one example"


@pytest.mark.parametrize("heading", PROGRAMS)
def test_the_example_prints_what_it_says(stack: Stack, heading: str) -> None:
    example = EXAMPLES[heading]
    code = example.code.replace("http://127.0.0.1:8000/v1", stack.demo["base_url"])
    code = code.replace("YOUR_KEY", stack.demo["api_key"])
    command, folder = PROGRAMS[heading]()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    done = subprocess.run(
        command, input=code, cwd=folder, env=environment, capture_output=True, text=True, timeout=RUN_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == example.printed
    assert len(example.printed) > 1
    assert len(example.printed) == len(re.findall(r"\bprint\(|console\.log\(", example.code))
