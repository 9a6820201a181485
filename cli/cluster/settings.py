"""Reads the settings of the controller of a cluster's engines from ROOTSTOCK_RAY_*."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PASSED_ON = (
    *("ROOTSTOCK_ENGINE_", "ROOTSTOCK_DEVICE_", "ROOTSTOCK_CLUSTER_", "ROOTSTOCK_DISK_"),
    *("ROOTSTOCK_BASE_", "ROOTSTOCK_ADAPTERS_", "OMP_", "NCCL_"),
    *("ROOTSTOCK_SIGNING_PUBLIC_KEYS", "ROOTSTOCK_SIGNING_REQUIRED"),
)
"""The settings that engines on other hosts get. Those of the database and of payments stay here."""
DRAFTING = ("ROOTSTOCK_ENGINE_SPECULATION", "ROOTSTOCK_ENGINE_DRAFTER", "ROOTSTOCK_ENGINE_PACKED_DRAFTER")
"""Settings of the first base's engines that those of other bases do not share: see `FurtherBase.drafting`."""
_STORE = "ROOTSTOCK_STORAGE_"
_KEY = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")


class FurtherBase(BaseModel):
    """A base model beside the first, of whose engines the controller keeps as many."""

    model_config = ConfigDict(frozen=True)

    name: str
    path: str
    quantization: str
    digest: str = ""
    """In the object store, if engines fetch it."""
    drafting: dict[str, str] = Field(default_factory=dict)
    """Whether its engines verify guesses, and the settings of its draft adapter, if it has one."""

    def environment(self) -> dict[str, str]:
        """Returns the settings of its engines that are not those of the first base's."""
        return {
            "ROOTSTOCK_ENGINE_BASE": self.path,
            "ROOTSTOCK_ENGINE_BASE_NAME": self.name,
            "ROOTSTOCK_DEVICE_QUANTIZATION": self.quantization,
            **({"ROOTSTOCK_BASE_DIGEST": self.digest} if self.digest else {}),
            **self.drafting,
        }


def engine_prefix(base: str, first: str) -> str:
    """Returns what the names of a base's engines begin with, before `-NUMBER`. `first`: the default base."""
    return "engine" if base == first else f"engine-{base}"


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
    further: tuple[FurtherBase, ...] = ()
    """The bases beside the first, as JSON."""
    replicas_min: Annotated[int, Field(ge=1, le=64)] = 1
    """Engines of each base, at least."""
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
    """Returns the variables that every engine of the cluster gets: those of the object store only if it
    fetches from there, and of the store's keys the one that can only read.

    Raises ValueError without such a key.
    """
    passed_on = {name: value for name, value in environment.items() if name.startswith(PASSED_ON)}
    if environment.get("ROOTSTOCK_BASE_DIGEST") or fetches_adapters(environment):
        passed_on |= _reading(environment)
    return passed_on


def fetches_adapters(environment: Mapping[str, str]) -> bool:
    """Returns whether engines get packed adapters from the object store."""
    return environment.get("ROOTSTOCK_ADAPTERS_FETCH", "").lower() in ("1", "true", "yes", "on", "y", "t")


def fetches_from_store(environment: Mapping[str, str]) -> bool:
    """Returns whether the engines of `up --ray` get base and adapters from the object store: if the operator
    has named one, which all hosts then reach, unless ROOTSTOCK_ADAPTERS_FETCH is false.

    Raises ValueError when they would need a key that is not there.
    """
    fetching = {"ROOTSTOCK_ADAPTERS_FETCH": "true", **environment}
    if not environment.get("ROOTSTOCK_STORAGE_URL") or not fetches_adapters(fetching):
        return False
    engine_environment(fetching)
    return True


def _reading(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of an object store that is only read."""
    settings = {name: value for name, value in environment.items() if name.startswith(_STORE)}
    writing = [settings.pop(f"{_STORE}{name}", "") for name in _KEY]
    reading = {f"{_STORE}{name}": settings.pop(f"{_STORE}READER_{name}", "") for name in _KEY}
    if all(reading.values()):
        return settings | reading
    if any(writing) or any(reading.values()):
        raise ValueError(
            "engines on other hosts need a key of the object store that can only read: set "
            f"{_STORE}READER_ACCESS_KEY_ID and {_STORE}READER_SECRET_ACCESS_KEY"
        )
    return settings  # a directory, or the role of each host
