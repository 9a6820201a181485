"""Seals rows again under the current key secret, in batches, while the service runs.

Rows say by their label which secret they are sealed under, so a run that was interrupted continues where it
was. A row that changes meanwhile is left to its writer, which seals with the current secret.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from db.session import EVERY_TENANT, Database
from tenants.identities.sealing import RotatingSealer
from tenants.key_secrets import KeySecrets
from tenants.rotation.repository import SealedColumn, SealedRows

BATCH_SIZE = 200
MOST_NAMED = 10


@dataclass(slots=True)
class Resealed:
    """What a run did with one column."""

    what: str
    num_resealed: int = 0
    num_unreadable: int = 0
    """Sealed under neither secret."""
    unreadable: list[str] = field(default_factory=list)
    """The first of those rows: their primary keys."""


class Resealer:
    """Reseals columns under the current one of `secrets`."""

    def __init__(self, database: Database, secrets: KeySecrets, columns: Sequence[SealedColumn]) -> None:
        self._database = database
        self._columns = [
            (column, sealer, SealedRows(column, sealer.label))
            for column in columns
            for sealer in [RotatingSealer(secrets, column.purpose)]
        ]

    async def num_due(self) -> dict[str, int]:
        """Returns by column how many values are not sealed under the current secret."""
        found = {}
        for column, _, rows in self._columns:
            async with self._database.read(EVERY_TENANT) as session:
                found[column.what] = await rows.num_due(session)
        return found

    async def run(
        self, progress: Callable[[str, int], None] = lambda what, num: None, *, batch_size: int = BATCH_SIZE
    ) -> list[Resealed]:
        """Reseals what is due, a transaction for each batch. `progress` is called after each with the column
        and the number of values resealed. Raises DatabaseUnavailable: run it again.
        """
        results = []
        for column, sealer, rows in self._columns:
            result = Resealed(column.what)
            after: tuple[Any, ...] | None = None
            while True:
                async with self._database.read(EVERY_TENANT) as session:
                    batch = await rows.due(session, after, batch_size)
                if not batch:
                    break
                after = rows.key_of(batch[-1])
                values = []
                for row in batch:
                    whose = column.whose(row)
                    try:
                        opened = sealer.open(bytes(row["sealed"]), whose)
                    except ValueError:
                        result.num_unreadable += 1
                        if len(result.unreadable) < MOST_NAMED:
                            result.unreadable.append(" ".join(map(str, rows.key_of(row))))
                    else:
                        values.append(rows.parameters(row, sealer.seal(opened, whose)))
                async with self._database.write(EVERY_TENANT) as writing:
                    result.num_resealed += await rows.replace(writing, values)
                progress(column.what, result.num_resealed)
            results.append(result)
        return results
