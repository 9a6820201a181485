"""Prepares an import when a version is created: checks its source and seals the credentials into the job.

A job keeps them, encrypted, until it ends: `adapters.jobs.service.finish` removes them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from adapters.imports.policy import ImportPolicy
from adapters.imports.sources import Source, source_of
from adapters.jobs.models import CREDENTIALS
from tenants.identities.sealing import RotatingSealer
from tenants.key_secrets import KeySecrets

_PURPOSE = "credentials of adapter imports"


class ImportAdmission:
    """Checks and seals the sources of imports.

    Args:
        secret: the server's, from which the key of credentials is derived, or both during a rotation.
    """

    def __init__(self, policy: ImportPolicy, secret: str | KeySecrets) -> None:
        self.policy = policy
        self._sealer = RotatingSealer(secret, _PURPOSE)

    def admitted(self, source: Source) -> Source:
        """Returns the source with its endpoint. Raises InvalidAdapter naming the field."""
        return self.policy.admitted(source)

    def sealed(self, source: Source, tenant_id: str, adapter_id: str) -> dict[str, Any]:
        """Returns what the job of the adapter stores of an admitted source."""
        stored: dict[str, Any] = {"source": source.described()}
        secrets = source.secrets()
        if secrets:
            sealed = self._sealer.seal(json.dumps(secrets).encode(), f"{tenant_id} {adapter_id}")
            stored[CREDENTIALS] = base64.b64encode(sealed).decode()
        return stored

    def opened(self, stored: Mapping[str, Any], tenant_id: str, adapter_id: str) -> Source:
        """Returns the source that a job stores, checked again: the operator may have changed what is allowed.
        Raises InvalidAdapter, and ValueError if the server's secret is another one.
        """
        secrets: Mapping[str, str] = {}
        if CREDENTIALS in stored:
            sealed = base64.b64decode(stored[CREDENTIALS])
            secrets = json.loads(self._sealer.open(sealed, f"{tenant_id} {adapter_id}"))
        return self.policy.admitted(source_of(stored["source"], secrets))
