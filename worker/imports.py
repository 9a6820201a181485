"""Builds what imports adapters' files in a worker that runs jobs."""

from __future__ import annotations

from adapters.files.service import FileService
from adapters.imports.admission import ImportAdmission
from adapters.imports.client import ImportClient
from adapters.imports.importing import AdapterImporter
from adapters.imports.settings import ImportSettings
from adapters.inspection.sandbox import Sandbox
from adapters.signing.uploads import UploadSignatures
from adapters.source_copies import SourceCopies
from tenants.settings import TenantSettings
from worker.runtime import Runtime


def build_importer(runtime: Runtime, sandbox: Sandbox) -> AdapterImporter:
    """Returns the importer of this process; it opens credentials that the API processes sealed."""
    policy = ImportSettings().policy()
    secrets = TenantSettings().key_secrets()  # type: ignore[call-arg]
    files = FileService(runtime.database, runtime.store, sandbox)
    base_configs = {base.name: base.path / "config.json" for base in runtime.bases}
    signatures = UploadSignatures(runtime.database, runtime.store)
    copies = SourceCopies(runtime.store, files, sandbox, signatures, base_configs)
    return AdapterImporter(
        runtime.store, files, copies, ImportAdmission(policy, secrets), ImportClient(policy)
    )
