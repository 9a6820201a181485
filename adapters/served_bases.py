"""Reads from ROOTSTOCK_BASES_* which base models are served beside the first. Only process mains do.

The first base has settings of its own in each process (ROOTSTOCK_API_BASE_NAME, ...); most services have no
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from routing.endpoints import parse_endpoints

ToolFormatName = Literal["auto", "none", "hermes", "llama", "mistral", "mistral_args", "qwen_coder"]
ReasoningFormatName = Literal["auto", "none", "think", "mistral", "seed_oss", "cohere", "kimi"]
ReasoningEffort = Literal["minimal", "low", "medium", "high", "xhigh"]
"""OpenAI's efforts, without `none`."""
ReasoningBudgets = dict[ReasoningEffort, Annotated[int, Field(ge=1, lt=2**31)] | None]
BaseName = Annotated[str, Field(pattern=r"^[a-z0-9._-]{1,64}$")]


class ServedBase(BaseModel):
    """A base model, and the engines that serve it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: BaseName
    """Name it is sold under."""
    path: Path
    """Its directory in Hugging Face layout. API processes read no weights; calibration reads all."""
    engine_endpoint: str
    """Where its engines listen, `ipc://...` or `tcp://...`, separated by commas."""
    tool_format: ToolFormatName = "auto"
    reasoning_format: ReasoningFormatName = "auto"
    reasoning_budgets: ReasoningBudgets = {}

    @property
    def engines(self) -> tuple[str, ...]:
        return parse_endpoints(self.engine_endpoint)

    @field_validator("engine_endpoint")
    @classmethod
    def _names_engines(cls, endpoints: str) -> str:
        return checked_endpoints(endpoints)


def checked_endpoints(endpoints: str) -> str:
    """Returns a list of endpoints that names an engine. Raises ValueError."""
    if not parse_endpoints(endpoints):
        raise ValueError("names no engine: give at least one endpoint, ipc://PATH or tcp://HOST:PORT")
    return endpoints


def further_bases(environment: Mapping[str, str]) -> tuple[ServedBase, ...]:
    """Returns the base models beside the first by the settings of another process. Raises ValueError."""
    listed = environment.get("ROOTSTOCK_BASES_FURTHER") or "[]"
    return TypeAdapter(tuple[ServedBase, ...]).validate_json(listed)


class FurtherBases(BaseSettings):
    """The settings of the base models beside the first."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_BASES_")

    further: tuple[ServedBase, ...] = ()
    """As a JSON list of objects with `name`, `path`, `engine_endpoint`, and, where they are not found in the
    chat template, `tool_format`, `reasoning_format`, `reasoning_budgets`."""

    def beside(self, first: ServedBase) -> tuple[ServedBase, ...]:
        """Returns all bases, the first one first. Raises ValueError when two have one name or one engine."""
        bases = (first, *self.further)
        names: set[str] = set()
        engines: dict[str, str] = {}
        for base in bases:
            if base.name in names:
                raise ValueError(
                    f"ROOTSTOCK_BASES_FURTHER: two bases are called {base.name!r}: give each its own name"
                )
            names.add(base.name)
            for engine in base.engines:
                if engine in engines:
                    raise ValueError(
                        f"ROOTSTOCK_BASES_FURTHER: {engine} is named for {engines[engine]!r} and "
                        f"{base.name!r}: an engine serves one base"
                    )
                engines[engine] = base.name
        return bases
