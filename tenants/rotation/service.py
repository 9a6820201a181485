"""Reports what still needs the other key secret, and records rotations in the service's audit log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from db.session import EVERY_TENANT, Database
from tenants.actors import OPERATOR, Actor
from tenants.audit.service import OPERATOR_CHAIN, AuditEntry, AuditLog
from tenants.key_secrets import KeySecrets
from tenants.rotation.repository import HashedCredentials, HashedUse, SealedColumn
from tenants.rotation.resealing import Resealer

MOST_KEYS = 20
ROTATABLE = (
    "key-secret",
    "client-key",
    "prefill-key",
    "signing-key",
    "stripe-api-key",
    "stripe-webhook-secret",
    "oidc-client-secret",
    "smtp-password",
    "database-password",
    "redis-password",
    "storage-key",
    "backup-key",
    "ray-token",
)
"""Secrets of the service, as the audit log names them."""


@dataclass(frozen=True, slots=True)
class RotationReport:
    """What was made with which key secret."""

    is_rotating: bool
    """Whether two secrets are accepted."""
    hashed: Sequence[HashedUse]
    sealed: dict[str, int]
    """By column, the values that are not sealed under the current secret."""
    keys: Sequence[tuple[str, str, str]]
    """Tenant, id and prefix of the API keys that were not used since the rotation began, `MOST_KEYS` at
    most.
    """

    @property
    def num_waiting(self) -> int:
        """Returns how many credentials and values are lost when the other secret is removed."""
        return sum(use.num_other + use.num_unknown for use in self.hashed) + sum(self.sealed.values())


class SecretRotation:
    """The rotation of one service's secrets. `columns`: all that are sealed under the key secret."""

    def __init__(self, database: Database, secrets: KeySecrets, columns: Sequence[SealedColumn]) -> None:
        self._database = database
        self._secrets = secrets
        self.resealer = Resealer(database, secrets, columns)

    async def report(self) -> RotationReport:
        async with self._database.read(EVERY_TENANT) as session:
            credentials = HashedCredentials(session)
            hashed = await credentials.uses(self._secrets.id)
            keys = await credentials.keys_of_others(self._secrets.id, MOST_KEYS)
        return RotationReport(self._secrets.other is not None, hashed, await self.resealer.num_due(), keys)

    async def record(
        self, event: str, secret: str, details: Mapping[str, object] | None = None, actor: Actor = OPERATOR
    ) -> AuditEntry:
        """Records what happened to a secret: `event` is `rotation_begun`, `resealed` or `rotated`. Details
        contain no secrets. Raises ValueError for an unknown secret.
        """
        if secret not in ROTATABLE:
            raise ValueError(f"no secret is called {secret!r}: use one of {', '.join(ROTATABLE)}")
        async with self._database.write(OPERATOR_CHAIN) as session:
            return await AuditLog.record(
                session, OPERATOR_CHAIN, actor, f"secret.{event}", ("secret", secret), details
            )
