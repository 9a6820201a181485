"""Says what a tenant's legal holds cover, and refuses deletions of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from db.session import WriteSession
from tenants.retention.classes import DataClass
from tenants.retention.errors import OnLegalHold
from tenants.retention.repository import HoldRepository


@dataclass(frozen=True, slots=True)
class Holds:
    """The legal holds of one organization that are in force: ids of holds by what they cover."""

    tenant_id: str
    by_class: Mapping[str, str]
    by_object: Mapping[str, str]

    @property
    def of_everything(self) -> str | None:
        """The hold on the whole organization, if there is one."""
        return self.by_object.get(self.tenant_id)

    def of_class(self, data_class: DataClass) -> str | None:
        """Returns the hold that covers a whole class, if there is one."""
        return self.of_everything or self.by_class.get(data_class)


async def holds_of(session: WriteSession, tenant_id: str) -> Holds:
    """Returns the holds in force. No hold is placed until this transaction ends: a deletion in it has seen
    every hold that was placed before.
    """
    repository = HoldRepository(session, tenant_id)
    await repository.keep_out_new_holds()
    found = await repository.in_force()
    return Holds(
        tenant_id,
        {hold.data_class: hold.id for hold in found if hold.data_class is not None},
        {hold.object_id: hold.id for hold in found if hold.object_id is not None},
    )


async def require_no_hold(
    session: WriteSession, tenant_id: str, what: str, data_class: DataClass | None, *object_ids: str | None
) -> None:
    """Raises OnLegalHold if one of the objects, their class or the organization is on hold. `what`: names the
    object in the message.
    """
    holds = await holds_of(session, tenant_id)
    hold = holds.of_everything if data_class is None else holds.of_class(data_class)
    for object_id in object_ids:
        hold = hold or (None if object_id is None else holds.by_object.get(object_id))
    if hold is not None:
        raise OnLegalHold(what, hold)
