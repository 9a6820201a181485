"""Resolves model names to what the engine runs: cached per tenant, invalidated within a second of a
change.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import redis.asyncio

from adapters.bases import Bases
from adapters.errors import ModelNotFound, ModelNotReady
from adapters.model_names import ADAPTER_ID, InvalidModelName, ModelName, base_of, parse
from adapters.models import Adapter, AdapterVersion, VersionState
from adapters.repository import AdapterRepository
from adapters.sharing.repository import ReceivedShares
from db.cache import Lifetimes, RowCache
from db.session import Database
from engine.protocol import AdapterRef
from tenants.repository import TenantDirectory
from tenants.share_terms import ShareTerms

MODELS_CHANNEL = "rootstock:invalidate:models"
NO_ACTIVE_VERSION = "no version is active"
REFUSED_SIGNATURE = "its files are not what was signed"


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The model that a name resolves to now."""

    name: str
    """The pinned form: it always means the same weights."""
    adapter: AdapterRef | None = None
    """None: the base model without an adapter."""
    adapter_id: str | None = None
    version: int | None = None
    share: ShareTerms | None = None
    """What using it costs besides; None for a base and for the tenant's own adapters."""

    @property
    def base(self) -> str:
        """The base model, with which the name begins."""
        return base_of(self.name)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as lists show it."""

    id: str
    base: str
    created: int
    """Unix seconds."""
    owned_by: str
    adapter_id: str | None = None
    version: int | None = None
    rank: int | None = None
    digest: str | None = None
    """None for a base, and for the adapter of another organization."""
    share: ShareTerms | None = None
    """Of an adapter that another organization shares."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A cached result: the model, or why the tenant's own adapter cannot be served."""

    model: ResolvedModel | None
    card: ModelCard | None
    state: str


@dataclass(frozen=True, slots=True)
class _Grant:
    """A cached result: the name is that of a shared adapter, whose owner's entry says what it serves."""

    terms: ShareTerms
    adapter_id: str
    name: ModelName
    """Without a version."""
    created: int

    def model(self, found: _Found, version: int | None) -> _Found:
        """Returns what the owner's entry means under the shared name."""
        if found.model is None or found.card is None:
            # What is wrong with the owner's files is the owner's to know.
            state = REFUSED_SIGNATURE if found.state.startswith(REFUSED_SIGNATURE) else found.state
            return _Found(None, None, state)
        pinned = replace(self.name, version=found.model.version)
        card = replace(
            found.card,
            id=str(self.name if version is None else pinned),
            created=self.created,
            digest=None,
            share=self.terms,
        )
        return _Found(replace(found.model, name=str(pinned), share=self.terms), card, found.state)


class ModelResolver:
    """Resolves model names in a process that serves `bases`. `start` it with the process, `close` it at its
    end.
    """

    def __init__(
        self,
        database: Database,
        redis_client: redis.asyncio.Redis,
        bases: Bases,
        *,
        base_created: int = 0,
        ttl: float = 30.0,
    ) -> None:
        self._database = database
        self.bases = bases
        self._base_cards = {base: ModelCard(base, base, base_created, "rootstock") for base in bases}
        self._base_models = {base: ResolvedModel(base) for base in bases}
        self._cache: RowCache[_Found | _Grant] = RowCache(
            redis_client, MODELS_CHANNEL, self._load, lifetimes=Lifetimes(ttl)
        )

    async def start(self) -> None:
        await self._cache.start()

    async def close(self) -> None:
        await self._cache.close()

    @property
    def listening(self) -> bool:
        return self._cache.listening

    async def resolve(self, tenant_id: str, model: str) -> ResolvedModel:
        """Resolves a name. Raises ModelNotFound, ModelNotReady, DatabaseUnavailable."""
        found = await self._find(tenant_id, model)
        if found is None:
            return self._base_models[model]
        if found.model is None:
            raise ModelNotReady(model, found.state)
        return found.model

    async def card(self, tenant_id: str, model: str) -> ModelCard:
        """Returns `model` as lists show it, also a pinned version, which no list contains. Raises as
        `resolve` does.
        """
        found = await self._find(tenant_id, model)
        if found is None:
            return self._base_cards[model]
        if found.card is None:
            raise ModelNotReady(model, found.state)
        return found.card

    async def list(self, tenant_id: str) -> list[ModelCard]:
        """Returns every base, followed by the tenant's ready adapters of it by name, and those that other
        organizations share with it. Raises DatabaseUnavailable.
        """
        async with self._database.read(tenant_id) as session:
            rows = await AdapterRepository(session, tenant_id).all_active(self.bases)
            shares = await ReceivedShares(session, tenant_id).active(self.bases)
        cards = {base: [card] for base, card in self._base_cards.items()}
        for adapter, version in rows:
            if version.state == VersionState.READY:
                name = ModelName(adapter.base, adapter.name)
                cards[adapter.base].append(self._card(name, adapter, version))
        for share in shares:
            with suppress(ModelNotFound, ModelNotReady):  # its owner serves no version now
                cards[share.base].append(await self.card(tenant_id, share.model))
        return [card for of_base in cards.values() for card in of_base]

    async def _find(self, tenant_id: str, model: str) -> _Found | None:
        """Returns None for a base itself."""
        if model in self._base_models:
            return None
        try:
            name = parse(model)
        except InvalidModelName:
            raise ModelNotFound(model) from None
        if not self.bases.has_model(name):
            raise ModelNotFound(model)
        found = await self._cache.get(tenant_id, model)
        if isinstance(found, _Grant):
            key = found.adapter_id if name.version is None else f"{found.adapter_id}@{name.version}"
            of_owner = await self._cache.get(found.terms.owner_id, key)
            assert not isinstance(of_owner, _Grant), "an id names no shared adapter"
            found = None if of_owner is None else found.model(of_owner, name.version)
        if found is None:
            raise ModelNotFound(model)
        return found

    async def _load(self, tenant_id: str, model: str) -> _Found | _Grant | None:
        """Loads what a name means to a tenant. `adp_...@version` is no name that a caller can give: it is how
        a shared name finds its owner's version.
        """
        adapter_id, at, number = model.partition("@")
        is_of_owner = at and ADAPTER_ID.fullmatch(adapter_id) is not None
        name = ModelName(version=int(number), adapter_id=adapter_id) if is_of_owner else parse(model)
        if name.owner is not None:
            return await self._granted(tenant_id, name)
        async with self._database.read(tenant_id) as session:
            row = await AdapterRepository(session, tenant_id).find_with_version(self.bases, name)
        if row is None:
            return None
        adapter, version = row
        if adapter.disabled_at is not None or (name.version is not None and version is None):
            return None
        if version is None:
            return _Found(None, None, NO_ACTIVE_VERSION)
        if version.state in (VersionState.DISABLED, VersionState.DELETING):
            return None
        if version.state != VersionState.READY:
            return _Found(None, None, version.state)
        if version.signature_problem is not None:
            return _Found(None, None, f"{REFUSED_SIGNATURE} ({version.signature_problem})")
        if name.version is None and adapter.active_version is None:
            return _Found(None, None, NO_ACTIVE_VERSION)
        pinned = ModelName(adapter.base, adapter.name, version.version)
        assert version.digest is not None, "the schema holds ready versions to it"
        assert version.rank is not None
        ref = AdapterRef(version.digest, version.rank)
        resolved = ResolvedModel(str(pinned), ref, adapter.id, version.version)
        return _Found(resolved, self._card(name, adapter, version), version.state)

    async def _granted(self, tenant_id: str, name: ModelName) -> _Grant | None:
        assert name.base is not None
        assert name.owner is not None
        assert name.adapter is not None
        async with self._database.read(tenant_id) as session:
            share = await ReceivedShares(session, tenant_id).named(name.base, name.owner, name.adapter)
        if share is None:
            return None
        async with self._database.read(share.tenant_id) as session:
            owner = await TenantDirectory(session).tenant(share.tenant_id)
        if owner is None or owner.disabled_at is not None:
            return None
        created = int((share.accepted_at or share.created_at).timestamp())
        return _Grant(share.terms, share.adapter_id, replace(name, version=None), created)

    def _card(self, name: ModelName, adapter: Adapter, version: AdapterVersion) -> ModelCard:
        return ModelCard(
            id=str(name),
            base=adapter.base,
            created=int((version if name.version else adapter).created_at.timestamp()),
            owned_by=adapter.tenant_id,
            adapter_id=adapter.id,
            version=version.version,
            rank=version.rank,
            digest=version.digest,
        )


async def publish_model_change(redis_client: redis.asyncio.Redis, tenant_id: str) -> None:
    """Tells every resolver that a tenant's adapters changed."""
    await redis_client.publish(MODELS_CHANNEL, tenant_id)
