"""Reads the signatures of versions: for their owners, and for organizations that they are shared with."""

from __future__ import annotations

from adapters.bases import Bases
from adapters.catalogue import MAX_VERSION
from adapters.errors import AdapterNotFound, VersionNotFound
from adapters.repository import AdapterRepository
from adapters.sharing.errors import ShareNotFound
from adapters.sharing.models import ShareState
from adapters.sharing.repository import ReceivedShares, ShareDirectory
from adapters.signing.errors import SignatureNotFound
from adapters.signing.repository import SignatureRepository
from db.session import EVERY_TENANT, Database
from engine.signing.keys import TrustedKeys
from tenants.repository import is_id


class SignatureReader:
    """`keys`: the platform's public keys, the current one first; empty where it does not sign."""

    def __init__(self, database: Database, bases: Bases, keys: TrustedKeys) -> None:
        self._database = database
        self._bases = bases
        self.keys = keys

    async def of_version(self, tenant_id: str, adapter: str, version: int) -> str:
        """Returns the `model.sig` of one of the tenant's versions. Raises AdapterNotFound, VersionNotFound,
        SignatureNotFound.
        """
        async with self._database.read(tenant_id) as session:
            repository = AdapterRepository(session, tenant_id)
            row = await repository.find(self._bases, self._bases.reference(adapter))
            if row is None:
                raise AdapterNotFound(adapter)
            known = 0 < version <= MAX_VERSION
            if not known or await repository.version(row.id, version) is None:
                raise VersionNotFound(row.name, version)
            signature = await SignatureRepository(session, tenant_id).find(row.id, version)
        if signature is None:
            raise SignatureNotFound(row.name, version)
        return signature.bundle

    async def of_share(self, recipient_id: str, share_id: str) -> str:
        """Returns the `model.sig` of the version that an active share serves. Raises ShareNotFound,
        SignatureNotFound.
        """
        async with self._database.read(recipient_id) as session:
            share = await ReceivedShares(session, recipient_id).find(share_id) if is_id(share_id) else None
        if share is None or share.state != ShareState.ACTIVE:
            raise ShareNotFound(share_id)
        async with self._database.read(EVERY_TENANT) as session:
            serving = (await ShareDirectory(session).serving([share])).get(share.id)
        if serving is None:
            raise SignatureNotFound(share.model, 0)
        async with self._database.read(share.tenant_id) as session:
            repository = SignatureRepository(session, share.tenant_id)
            signature = await repository.find(serving.adapter_id, serving.version)
        if signature is None:
            raise SignatureNotFound(share.model, serving.version)
        return signature.bundle
