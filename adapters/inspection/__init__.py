"""Looking at files that nobody trusts, in processes that can do no harm.

What others use of it is here; it loads neither torch nor numpy. The checks themselves run in the sandbox
(`inspector`); packing shares `config`, `header` and `modules` with them.
"""

from adapters.inspection.errors import InspectionRefused, SandboxUnavailable
from adapters.inspection.findings import Inspection, ModuleFacts
from adapters.inspection.sandbox import Sandbox, SandboxLimits

__all__ = ["Inspection", "InspectionRefused", "ModuleFacts", "Sandbox", "SandboxLimits", "SandboxUnavailable"]
