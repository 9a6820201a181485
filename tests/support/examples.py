"""Says how many examples hypothesis tries of a property: few while developing, many before a release.

`ROOTSTOCK_TEST_EXAMPLES` names the profile: `quick` (a fifth), `ordinary` or `thorough` (ten times as many).
"""

from __future__ import annotations

import os

FACTORS = {"quick": 0.2, "ordinary": 1.0, "thorough": 10.0}
PROFILE = os.environ.get("ROOTSTOCK_TEST_EXAMPLES", "ordinary")


def examples(ordinary: int, profile: str = PROFILE) -> int:
    """The number to try where the ordinary run tries `ordinary`; at least 2."""
    return max(2, round(ordinary * FACTORS[profile]))
