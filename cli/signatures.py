"""Verifies signatures of adapters for the operator's commands; signs and exports versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cli.errors import CliError
from cli.service_access import Services, call, environment_of, object_store, setting
from cli.signing_key import KEY_FILE, PUBLIC_KEYS, keys_of
from engine.signing import folder
from engine.signing.bundle import verify
from engine.signing.errors import SignatureError
from engine.signing.keys import TrustedKeys
from engine.signing.statement import SIGNATURE_FILE

if TYPE_CHECKING:
    from adapters.models import AdapterVersion
    from adapters.signing.maintenance import SignatureMaintenance
    from adapters.signing.models import AdapterSignature

T = TypeVar("T")


def verify_folder(directory: Path, key_file: Path | None, data: Path | None) -> tuple[str, int]:
    """Verifies a folder with a `model.sig`, without a service; returns the key's id and the number of files.

    `key_file`: public keys in PEM; None: those of the settings, or of `data`. Raises `CliError`.
    """
    keys = _trusted(key_file, data)
    try:
        verified = verify((directory / SIGNATURE_FILE).read_bytes(), keys)
        folder.check_folder(verified, directory)
    except SignatureError as error:
        raise CliError(f"{directory} is refused: {error}") from error
    except OSError as error:
        raise CliError(f"{error.filename or directory}: {error.strerror}") from error
    return verified.key.id, len(verified.digests)


def check_version(data: Path | None, tenant: str, name: str, version: int) -> str | None:
    """Compares all stored files of a version with its signature; returns what is wrong. The version is
    refused, or served again, accordingly. Raises `CliError`.
    """

    async def work(maintenance: SignatureMaintenance, row: AdapterVersion) -> str | None:
        return await maintenance.check(row.tenant_id, row.adapter_id, row.version, datetime.now(UTC))

    return _on_version(data, tenant, name, version, work)


def sign_version(data: Path | None, tenant: str, name: str, version: int) -> bool:
    """Signs a version as its row describes it, also one that is refused; returns whether it did, and
    whether all stored files are what was signed. Raises `CliError`.
    """

    async def work(maintenance: SignatureMaintenance, row: AdapterVersion) -> bool:
        place = (row.tenant_id, row.adapter_id, row.version)
        if not await maintenance.sign(*place, anyway=True):
            return False
        return await maintenance.check(*place, datetime.now(UTC)) is None

    return _on_version(data, tenant, name, version, work, is_signing=True)


def export_version(data: Path | None, tenant: str, name: str, version: int, target: Path) -> None:
    """Writes a signed version's files and its `model.sig` into a new folder. Raises `CliError`."""
    from adapters.signing.export import export_version as export
    from adapters.storage import DigestMismatch, ObjectNotFound, StorageUnavailable

    async def work(services: Services) -> None:
        row, signature = await _read(services, tenant, name, version)
        if signature is None:
            raise CliError(f"version {version} of {name} is not signed yet")
        store, artifacts = object_store(services.environment), _artifacts(services)
        keys = _trusted_of(services)
        try:
            await export(store, artifacts, row, signature, keys, target)
        except SignatureError as error:
            raise CliError(f"version {version} of {name} is refused: {error}") from error
        except (ObjectNotFound, DigestMismatch, StorageUnavailable) as error:
            raise CliError(f"a stored file of version {version} of {name} cannot be read: {error}") from error
        except OSError as error:
            raise CliError(f"{target}: {error.strerror}: name a folder that does not exist") from error

    call(data, work)


def count_by_key(data: Path | None) -> dict[str | None, int]:
    """Returns the number of versions in service by the id of the key that signed them; None: unsigned."""
    from adapters.signing.repository import SignatureDirectory
    from db.session import EVERY_TENANT

    async def work(services: Services) -> dict[str | None, int]:
        async with services.database.read(EVERY_TENANT) as session:
            return await SignatureDirectory(session).counts()

    return call(data, work)


async def sign_registered(services: Services, tenant_id: str, adapter_id: str, version: int) -> None:
    """Signs a version that was registered, where there is a key. Raises `CliError`."""
    known = services.environment
    if known.get(KEY_FILE) and known.get("ROOTSTOCK_STORAGE_URL"):
        await _maintenance(services).sign(tenant_id, adapter_id, version)


def _on_version(
    data: Path | None,
    tenant: str,
    name: str,
    version: int,
    work: Callable[[SignatureMaintenance, AdapterVersion], Awaitable[T]],
    *,
    is_signing: bool = False,
) -> T:
    async def run(services: Services) -> T:
        row, signature = await _read(services, tenant, name, version)
        if signature is None and not is_signing:
            raise CliError(f"version {version} of {name} is not signed yet")
        return await work(_maintenance(services), row)

    return call(data, run)


def _maintenance(services: Services) -> SignatureMaintenance:
    from adapters.announcer import Announcer
    from adapters.signing.maintenance import SignatureMaintenance
    from adapters.signing.signer import VersionSigner
    from adapters.signing.stored import StoredVersions

    store, artifacts = object_store(services.environment), _artifacts(services)
    signer = VersionSigner(keys_of(Path(setting(services.environment, KEY_FILE))), store, artifacts)
    stored = StoredVersions(store, artifacts, signer.trusted)
    changed = Announcer(services.redis).changed
    return SignatureMaintenance(services.database, store, signer, stored, changed)


async def _read(
    services: Services, tenant: str, name: str, version: int
) -> tuple[AdapterVersion, AdapterSignature | None]:
    from adapters.catalogue import AdapterCatalogue
    from adapters.signing.repository import SignatureRepository

    owner = await services.accounts.tenants.find_tenant(tenant)
    catalogue = AdapterCatalogue(services.database, services.bases)
    _, row = await catalogue.version(owner.id, name, version)
    async with services.database.read(owner.id) as session:
        return row, await SignatureRepository(session, owner.id).find(row.adapter_id, row.version)


def _artifacts(services: Services) -> Path:
    return Path(setting(services.environment, "ROOTSTOCK_ENGINE_ARTIFACTS_DIR"))


def _trusted_of(services: Services) -> TrustedKeys:
    value = setting(services.environment, PUBLIC_KEYS)
    try:
        return TrustedKeys.from_setting(value)
    except ValueError as error:
        raise CliError(f"{PUBLIC_KEYS}: {error}") from error


def _trusted(key_file: Path | None, data: Path | None) -> TrustedKeys:
    try:
        if key_file is not None:
            return TrustedKeys.from_pem(key_file.read_text(encoding="ascii"))
        return TrustedKeys.from_setting(setting(environment_of(data), PUBLIC_KEYS))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise CliError(f"{key_file or PUBLIC_KEYS}: {error}") from error
