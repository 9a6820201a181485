"""Settings of engines that compute prompts, or have them computed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from engine.prefill_setup import check_prefill
from engine.settings import EngineSettings, PrefillSettings

HERE = "tcp://127.0.0.1:5800"


@pytest.mark.parametrize("address", ["127.0.0.1:5800", "tcp://127.0.0.1", "ipc://socket", f"{HERE},nowhere"])
def test_addresses_are_checked_before_anything_connects(address: str) -> None:
    with pytest.raises(ValidationError, match="must be tcp://HOST:PORT or ipc:///PATH"):
        PrefillSettings(sources=address)


def test_sources_are_listed_with_commas() -> None:
    settings = PrefillSettings(sources=f"{HERE}, ipc:///run/prompts.sock")
    assert settings.source_endpoints == [HERE, "ipc:///run/prompts.sock"]
    check_prefill(settings, tensor_parallel=1)


def test_what_does_not_go_together_is_refused_before_a_model_is_loaded() -> None:
    with pytest.raises(ValueError, match="tensor_parallel 2"):
        check_prefill(PrefillSettings(endpoint=HERE), tensor_parallel=2)
    with pytest.raises(ValueError, match="both set"):
        check_prefill(PrefillSettings(endpoint=HERE, sources=HERE), tensor_parallel=1)
    check_prefill(PrefillSettings(), tensor_parallel=2)
    with pytest.raises(ValidationError, match="null engine"):
        EngineSettings(null=True, base=Path("base"), prefill=PrefillSettings(endpoint=HERE))
