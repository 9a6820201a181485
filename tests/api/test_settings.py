"""Settings of the API process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from api.settings import ApiSettings


def test_two_processes_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def settings() -> ApiSettings:
        return ApiSettings(
            engine_endpoint="ipc:///e", base_path=Path("/b"), base_name="b", redis_url="redis://r"
        )

    first = settings().name
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    second = settings().name
    assert first != second
    assert second.endswith("-4711")
    monkeypatch.setenv("ROOTSTOCK_API_NAME", "api-east")
    assert settings().name == "api-east"


def test_engines_are_listed_with_commas() -> None:
    def endpoints(listed: str) -> tuple[str, ...]:
        settings = ApiSettings(
            engine_endpoint=listed, base_path=Path("/b"), base_name="b", redis_url="redis://r"
        )
        return settings.engine_endpoints

    assert endpoints("ipc:///e") == ("ipc:///e",)
    assert endpoints("ipc:///e, tcp://f:1") == ("ipc:///e", "tcp://f:1")
    with pytest.raises(ValueError, match="'ipc:///e' is named twice"):
        endpoints("ipc:///e,ipc:///e")
    with pytest.raises(ValueError, match="names no engine"):
        endpoints(" , ")
