from __future__ import annotations

import time

from adapters.model_names import ADAPTER_ID
from db.base import ALPHABET, new_id


def test_ids_are_prefixed_unique_and_sort_by_age() -> None:
    early = {new_id("tnt") for _ in range(1000)}
    time.sleep(0.002)
    late = new_id("tnt")
    assert len(early) == 1000
    assert all(made.startswith("tnt_") and len(made) == 30 and made < late for made in early)
    assert set("".join(made[4:] for made in early)) <= set(ALPHABET)


def test_an_adapters_id_is_a_model_name() -> None:
    assert ADAPTER_ID.fullmatch(new_id("adp"))
