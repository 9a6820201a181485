"""Running commands in this process: what they print, and what they refuse."""

from __future__ import annotations

from typer.testing import CliRunner

from cli.errors import CliError
from cli.main import app


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.output


def refusal(*arguments: str) -> str:
    """What the command says that it does not do."""
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, CliError)
    return str(result.exception)
