"""Inspection of untrusted adapter files, in sandboxed processes that can do no harm.

This package's public names load neither torch nor numpy, nor what only the sandbox's parent process needs
(`sandbox`). The checks run in the sandbox (`inspector`); packing shares `config`, `header` and `modules` with
them.
"""

from adapters.inspection.errors import InspectionRefused, SandboxUnavailable
from adapters.inspection.findings import Inspection, ModuleFacts

__all__ = ["Inspection", "InspectionRefused", "ModuleFacts", "SandboxUnavailable"]
