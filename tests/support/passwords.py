"""Makes passwords cheap to hash, where nothing depends on how slowly they are hashed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import argon2
import pytest

from tenants import passwords


@contextmanager
def cheap_passwords() -> Iterator[None]:
    cheap = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "_hasher", cheap)
        patch.setattr(passwords, "_ABSENT", cheap.hash("no user has this password"))
        yield
