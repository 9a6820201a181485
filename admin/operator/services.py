"""What the operator's pages call, as one object. Owns the list and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from adapters.naming import AdapterNames
from admin.operator.engines import Engines
from tenants.operators.impersonation import Impersonations
from tenants.operators.service import OperatorAccounts


@dataclass(frozen=True)
class OperatorServices:
    """Built by the API process."""

    accounts: OperatorAccounts
    impersonations: Impersonations
    engines: Engines
    adapter_names: AdapterNames
