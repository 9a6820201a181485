"""What the operator reads: plain lines without a terminal, and snippets that run as they stand."""

from __future__ import annotations

import ast
import io
import json
import shlex

import pytest

from cli.display import OPERATOR_COMMAND, LiveDisplay, PlainDisplay, Welcome, open_display

DEMO = Welcome(
    base_url="http://127.0.0.1:8000/v1",
    console_url="http://127.0.0.1:8000/console",
    metrics_url="http://127.0.0.1:8000/metrics",
    data_dir="var/demo",
    took_s=8.25,
    model="sapling:pirate",
    prompt="What is the capital of France?",
    api_key="rs_inference_abc",
    sign_in="demo@acme.example, password secret",
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_plain_lines() -> None:
    out = io.StringIO()
    display = open_display(out)
    assert isinstance(display, PlainDisplay)
    with display.step("Engine") as step:
        step.detail("loading weights")
        step.detail("sapling, int8")
    with display.step("stopping api", done="stopped"):
        pass
    with pytest.raises(ValueError, match="broken"), display.step("API"):
        raise ValueError("broken")
    display.note("engine died")
    display.trouble("no", ["last line"])
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("Engine: sapling, int8 (0.")
    assert lines[1].startswith("stopping api: stopped (")
    assert lines[2].startswith("API: failed after")
    assert lines[3:] == ["engine died", "error: no", "  | last line"]
    assert "\x1b" not in out.getvalue()


def test_a_terminal_gets_ticks_and_a_panel() -> None:
    out = Terminal()
    display = open_display(out)
    assert isinstance(display, LiveDisplay)
    with display.step("PostgreSQL") as outer, display.step("Engine") as inner:
        outer.detail("private")
        inner.detail("[int8] [/bold]")  # not markup
    with pytest.raises(ValueError, match="broken"), display.step("API"):
        raise ValueError("broken")
    display.welcome(DEMO)
    display.close()
    shown = out.getvalue()
    assert "✓" in shown
    assert "✗" in shown
    assert "[int8] [/bold]" in shown
    assert "rootstock serves" in shown


def test_the_curl_is_a_request_as_it_stands() -> None:
    words = shlex.split(DEMO.curl().replace("\\\n", " "))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert "Authorization: Bearer rs_inference_abc" in words
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == "sapling:pirate"
    assert body["messages"] == [{"role": "user", "content": "What is the capital of France?"}]


@pytest.mark.parametrize("key", ["rs_inference_abc", None])
def test_the_snippet_is_python(key: str | None) -> None:
    welcome = Welcome(**{**DEMO.__dict__, "api_key": key})
    ast.parse(welcome.python())
    assert ("rs_inference_abc" in welcome.python()) == (key is not None)
    if key is None:
        assert (
            '"Authorization: Bearer $ROOTSTOCK_API_KEY"' in welcome.curl()
        )  # double quotes: the shell expands it


def test_the_panel_says_where_operators_sign_in() -> None:
    assert ("Operator", OPERATOR_COMMAND) in DEMO.places()
    known = Welcome(**{**DEMO.__dict__, "operator_sign_in": "operator@rootstock.example, password secret"})
    assert ("Operator", "operator@rootstock.example, password secret") in known.places()
