from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.folding import EARLIEST, LATEST
from billing.request_ids import new_request_id, submitted_at_of


@given(
    st.floats(EARLIEST, LATEST), st.sampled_from(["chatcmpl", "cmpl"]), st.sampled_from(["", "-0", "-127"])
)
def test_the_name_says_when_to_the_microsecond(at: float, kind: str, place: str) -> None:
    name = new_request_id(kind, at)
    assert len(name) == len(kind) + 33
    found = submitted_at_of(name + place)
    assert found is not None
    assert abs(found.timestamp() - round(at, 6)) <= 2e-6


def test_names_of_one_moment_differ_and_sort_by_time() -> None:
    now = datetime(2026, 11, 21, tzinfo=UTC).timestamp()
    names = [new_request_id("chatcmpl", now) for _ in range(1000)]
    assert len(set(names)) == 1000
    assert max(names) < new_request_id("chatcmpl", now + 1e-5)


@pytest.mark.parametrize(
    "other",
    ["", "chatcmpl", "chatcmpl-", "req-1", "chatcmpl-" + "g" * 32, "chatcmpl-" + "0" * 31, "cmpl-" + "f" * 32,
     "CMPL-" + "0" * 32, "chatcmpl-" + "0" * 32 + "-", "chatcmpl-" + "0" * 32 + "-12345"],
)  # fmt: skip
def test_what_is_no_name_has_no_time(other: str) -> None:
    assert submitted_at_of(other) is None
