"""Builds what signs adapters, and what compares them with their signatures, in a worker that runs jobs."""

from __future__ import annotations

from adapters.announcer import Announcer
from adapters.signing.key_file import read_keys
from adapters.signing.maintenance import SignatureMaintenance
from adapters.signing.settings import SigningSettings
from adapters.signing.signer import VersionSigner
from adapters.signing.stored import StoredVersions
from worker.runtime import Runtime


def build_signer(runtime: Runtime) -> VersionSigner | None:
    """Returns the signer of this process; None without a signing key. Raises ValueError."""
    assert runtime.jobs is not None, "a worker without jobs signs nothing"
    file = SigningSettings().key_file
    return None if file is None else VersionSigner(read_keys(file), runtime.store, runtime.jobs.artifacts_dir)


def build_maintenance(runtime: Runtime) -> SignatureMaintenance | None:
    """Returns what signs and checks versions; None without a signing key. Raises ValueError."""
    signer = build_signer(runtime)
    if signer is None:
        return None
    assert runtime.jobs is not None
    stored = StoredVersions(runtime.store, runtime.jobs.artifacts_dir, signer.trusted)
    changed = Announcer(runtime.redis).changed
    return SignatureMaintenance(runtime.database, runtime.store, signer, stored, changed)
