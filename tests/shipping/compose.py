"""Reads the compose files as `docker compose` does: anchors resolved, variables replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from tests.shipping.checkout import ROOT

DEPLOY = ROOT / "deploy"
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::(?P<operator>[-?])(?P<text>[^}]*))?\}")


def document(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text())
    return loaded


def own_services(name: str) -> dict[str, dict[str, Any]]:
    """The services of a file that run our image."""
    services = document(name)["services"]
    return {key: service for key, service in services.items() if service["image"] == "rootstock"}


def example_variables() -> dict[str, str]:
    """What `.env.example` sets."""
    lines = (DEPLOY / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def used_variables(name: str) -> set[str]:
    return {found["name"] for found in VARIABLE.finditer((DEPLOY / name).read_text())}


def interpolate(value: str, variables: Mapping[str, str]) -> str:
    """Replace `${NAME}`, `${NAME:-default}` and `${NAME:?message}`. Raises KeyError without a value."""

    def replaced(found: re.Match[str]) -> str:
        given = variables.get(found["name"])
        if given:
            return given
        if found["operator"] == "-":
            return found["text"]
        raise KeyError(found["name"])

    return VARIABLE.sub(replaced, value)
