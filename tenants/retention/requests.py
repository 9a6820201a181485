"""Records what was deleted on request, so that a worker certifies it once the object store has followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from db.session import WriteSession
from tenants.actors import Actor
from tenants.retention.classes import DataClass
from tenants.retention.repository import DeletionRepository


@dataclass(frozen=True, slots=True)
class Removed:
    """Rows that the transaction removed from one table."""

    table: str
    num_rows: int
    data_class: DataClass | None = None
    ids: Sequence[str] = ()
    """Of the rows, if they have ids of their own."""
    object_keys: Sequence[str] = ()
    """Objects that only these rows named: a worker deletes them."""


async def record_request(
    session: WriteSession,
    tenant_id: str,
    by: Actor,
    target: tuple[str, str],
    removed: Sequence[Removed],
    *,
    is_done: bool = True,
) -> None:
    """Records the deletion of `target`, a kind and an id, within the transaction that deletes it. `is_done`:
    whether all rows are gone with it.
    """
    repository = DeletionRepository(session, tenant_id)
    deletion = await repository.add_request(target, {"type": by.kind, "id": by.id}, is_done=is_done)
    for one in removed:
        if one.num_rows:
            await repository.count(deletion, one.table, one.data_class, one.num_rows, one.ids)
        await repository.owe(deletion, one.table, one.object_keys)
