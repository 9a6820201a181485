"""Decides which releases may serve a schema: its own, and older ones that only lack what was added since.

A migration sets `expand_only = True` if the previous release's code can still serve: it only adds tables,
indexes, functions, and columns that an INSERT may omit. The schema records the oldest revision whose code may
serve it, so that a release recognises schemas newer than itself. The record is the comment of the version
table, which is written in the migration's transaction and is part of a dump.
"""

from __future__ import annotations

import re

from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

VERSION_TABLE = "alembic_version"
_COMMENT = "schema may be served by releases from revision {} on"
_NUMBER = re.compile(r"[0-9]{4}")


def record(connection: Connection, scripts: ScriptDirectory, revision: str | None) -> None:
    """Records in the schema, now at `revision`, which code may serve it, in the migration's transaction."""
    oldest = oldest_code(scripts, revision)
    comment = "NULL" if oldest is None else f"'{_COMMENT.format(oldest)}'"
    connection.execute(text(f"COMMENT ON TABLE {VERSION_TABLE} IS {comment}"))


def oldest_code(scripts: ScriptDirectory, revision: str | None) -> str | None:
    """Returns the oldest revision whose code may serve a schema at `revision`: that of the last migration
    that did more than expand it.
    """
    if revision is None:
        return None
    for script in scripts.iterate_revisions(revision, "base"):
        if not getattr(script.module, "expand_only", False):
            return script.revision
    return None


def recorded(connection: Connection) -> str | None:
    """Returns the oldest revision whose code may serve this schema, or None if none is recorded."""
    comment = connection.execute(
        text("SELECT obj_description(to_regclass(:name), 'pg_class')"), {"name": VERSION_TABLE}
    ).scalar_one()
    found = re.fullmatch(_COMMENT.format(f"({_NUMBER.pattern})"), comment or "")
    return found[1] if found else None


def is_newer(revision: str, than: str) -> bool:
    """Returns whether `revision` belongs to a later release. Revisions are ordered numbers of four digits."""
    return _NUMBER.fullmatch(revision) is not None and revision > than
