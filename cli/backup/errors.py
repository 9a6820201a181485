"""Defines the errors of backups and restores: one line each, which names the file or store."""

from __future__ import annotations

from cli.errors import CliError


class DamagedBackup(CliError):
    """A file of a backup is damaged, truncated, missing, or belongs to another backup."""

    def __init__(self, file: str, what: str) -> None:
        super().__init__(f"{file}: {what}; restore from another copy of this backup")
        self.file = file


class TargetNotEmpty(CliError):
    """The place to restore into holds something."""

    def __init__(self, place: str, what: str) -> None:
        super().__init__(f"{place} is not empty ({what}): restore into an empty one")
