"""Uploads that must be refused, and the field that each refusal must name. Against sapling as the base.

Every case writes both files of an otherwise good adapter into a folder. `CASES` is what tests go through:
in the sandbox, and over HTTP.
"""

from __future__ import annotations

from tests.adapters.inspection.damage import HostileCase
from tests.adapters.inspection.hostile_configs import config_cases
from tests.adapters.inspection.hostile_weights import weights_cases

CASES: list[HostileCase] = [*weights_cases(), *config_cases()]

__all__ = ["CASES", "HostileCase"]
