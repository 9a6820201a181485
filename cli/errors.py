"""What the command line says when it cannot go on. Knows no terminal: `cli.main` prints it and picks the exit
code.
"""

from __future__ import annotations


class CliError(Exception):
    """The command failed: one line for a person, with what to do about it. Exit code 1."""

    exit_code = 1


class UsageError(CliError):
    """The command was called wrongly. Exit code 2."""

    exit_code = 2
