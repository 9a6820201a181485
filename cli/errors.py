"""Defines the command line's errors: `cli.main` prints their one-line message and exits with their code."""

from __future__ import annotations


class CliError(Exception):
    """The command failed. The message is one line: the problem and its remedy. Exit code 1."""

    exit_code = 1


class UsageError(CliError):
    """The command was called incorrectly. Exit code 2."""

    exit_code = 2
