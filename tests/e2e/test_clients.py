"""The examples of docs/clients.md, as they stand on the page, print what their comments say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
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


@pytest.mark.timeout(600)
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


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
REFUSED: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "chat/completions": [
        ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [IMAGE]}]}),
        ("web_search_options", {"web_search_options": {}}),
        ("modalities", {"modalities": ["text", "audio"]}),
        ("store", {"store": True}),
        ("functions", {"functions": [{"name": "f"}]}),
    ],
    "responses": [
        (
            "input[0].content[0].type",
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
        ),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
        ("tools[0].type", {"tools": [{"type": "file_search", "vector_store_ids": ["a"]}]}),
        ("tools[0].type", {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}),
        ("tools[0].type", {"tools": [{"type": "mcp", "server_label": "a", "server_url": "https://a"}]}),
        ("tools[0].type", {"tools": [{"type": "image_generation"}]}),
        ("prompt", {"prompt": {"id": "pmpt_1"}}),
    ],
}


def test_what_the_page_says_is_refused(stack: Stack) -> None:
    texts = {
        "chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
        "responses": {"input": "Hello"},
    }
    headers = {"Authorization": f"Bearer {stack.demo['api_key']}"}
    with httpx.Client(base_url=stack.demo["base_url"], headers=headers, timeout=60) as client:
        for path, cases in REFUSED.items():
            for param, fields in cases:
                response = client.post(path, json={"model": "sapling"} | texts[path] | fields)
                error = response.json()["error"]
                assert (response.status_code, error["param"]) == (400, param), error
                assert error["code"] == "unsupported_parameter"
                assert f"`{param}`" in PAGE
