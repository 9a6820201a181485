"""`hostile_zygote` on a kernel that refuses what it may refuse: only users and limits are left."""

from __future__ import annotations

import runpy

from adapters.inspection import confinement

confinement.confining_filter = lambda: None
confinement.sealing_filter = lambda: None
confinement._landlock_version = lambda: -1
confinement._unshare = lambda what: False

if __name__ == "__main__":
    runpy.run_module("tests.adapters.inspection.hostile_zygote", run_name="__main__")
