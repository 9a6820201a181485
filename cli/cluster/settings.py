"""Reads the settings of the controller of a cluster's engines from ROOTSTOCK_RAY_*."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PASSED_ON = (
    *("ROOTSTOCK_ENGINE_", "ROOTSTOCK_DEVICE_", "ROOTSTOCK_CLUSTER_", "ROOTSTOCK_DISK_"),
    *("OMP_", "NCCL_"),
)
"""The settings that engines on other hosts get. Those of the database and of payments stay here."""


class HeadSettings(BaseSettings):
    """The Ray head that `rootstock up --ray` starts."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_RAY_", frozen=True)

    port: Annotated[int, Field(ge=1, le=65535)] = 6390
    """Port of the head that `rootstock up --ray` starts."""
    node_cpus: Annotated[int | None, Field(ge=0)] = None
    """Cores that this machine's Ray node offers. Unset: all."""


def head_settings() -> HeadSettings:
    """Returns the settings from the environment. Raises ValueError."""
    return HeadSettings()


class RaySettings(BaseSettings):
    """The controller of a cluster's engines."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_RAY_", frozen=True)

    address: str
    """HOST:PORT of the cluster's head."""
    namespace: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "rootstock"
    """Services on one cluster need different ones."""
    registry: str
    """Where engines register: registry+REDIS_URL?secret=FILE."""
    replicas_min: Annotated[int, Field(ge=1, le=64)] = 1
    replicas_max: Annotated[int, Field(ge=1, le=64)] = 1
    cpus: Annotated[float, Field(gt=0)] = 1
    """Cores that an engine reserves."""
    gpus: Annotated[int, Field(ge=0, le=8)] = 0
    """GPUs that an engine reserves, all on one host."""

    @model_validator(mode="after")
    def _is_a_range(self) -> RaySettings:
        if self.replicas_min > self.replicas_max:
            raise ValueError(
                f"replicas_min {self.replicas_min} is more than replicas_max {self.replicas_max}: lower it"
            )
        return self


def engine_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the variables that every engine of the cluster gets: the object store's only if it fetches its
    base from there.
    """
    fetches = bool(environment.get("ROOTSTOCK_BASE_DIGEST"))
    passed_on = (*PASSED_ON, *(("ROOTSTOCK_BASE_", "ROOTSTOCK_STORAGE_") if fetches else ()))
    return {name: value for name, value in environment.items() if name.startswith(passed_on)}
