"""Which tests run side by side: a process takes whole files, and all that share a running stack.

The longest go first, lest one of them begins when everything else has ended.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

TOGETHER = ("tests/e2e/apart/", "tests/e2e/")
"""Folders whose files share what takes long to start: the demo, and apart from it, imported modules."""
LONGEST_FIRST = (
    "tests/e2e/",
    "tests/shipping/test_wheel.py",
    "tests/kernels/test_compile.py",
    "tests/worker/test_jobs.py",
    "tests/adapters/calibration/test_run.py",
    "tests/worker/",
    "tests/adapters/calibration/",
    "tests/engine/process/",
    "tests/cli/",
    "tests/api/",
    "tests/adapters/",
    "tests/admin/",
    "tests/billing/",
    "tests/tenants/quotas/",
    "tests/benchmarks/",
    "tests/migrations/",
)


class ByFile(LoadFileScheduling):
    """Files, and folders that share, to whichever process has nothing left to do."""

    def _split_scope(self, nodeid: str) -> str:
        return next(
            (folder for folder in TOGETHER if nodeid.startswith(folder)), super()._split_scope(nodeid)
        )


def rank(nodeid: str) -> int:
    """Where a test's file stands among those to begin with."""
    return next(
        (place for place, begin in enumerate(LONGEST_FIRST) if nodeid.startswith(begin)), len(LONGEST_FIRST)
    )
