"""One thread, as the engine runs on a CPU: equal bits are promised for it (kernels/attention/README.md)."""

from collections.abc import Iterator

import pytest

from tests.support.arithmetic import arithmetic_threads


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with arithmetic_threads(1):
        yield
