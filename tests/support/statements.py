"""What a block of a test sends to PostgreSQL."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from sqlalchemy import event

from db.session import Database


class Statements:
    """Statements sent through one pool while the block runs, but for the start of transactions."""

    def __init__(self, database: Database) -> None:
        self.seen: list[str] = []
        self.num_transactions = 0
        self._engine = database.engine.sync_engine

    def __enter__(self) -> Statements:
        event.listen(self._engine, "before_cursor_execute", self._note)
        event.listen(self._engine, "begin", self._note_begin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        event.remove(self._engine, "before_cursor_execute", self._note)
        event.remove(self._engine, "begin", self._note_begin)

    def _note(self, connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        self.seen.append(statement)

    def _note_begin(self, connection: Any) -> None:
        self.num_transactions += 1
