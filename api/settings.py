"""Reads the settings of the API process from ROOTSTOCK_API_*. Only process mains construct them."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_network
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from adapters.served_bases import (
    BaseName,
    ReasoningBudgets,
    ReasoningFormatName,
    ServedBase,
    ToolFormatName,
    checked_endpoints,
)
from routing.endpoints import parse_endpoints


class ApiSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_API_")

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    """0 picks a free port."""
    listen_fd: int | None = Field(default=None, ge=3)
    """File descriptor of an inherited listening socket, used instead of host and port: its connections wait
    while this process restarts.
    """
    own_fd: int | None = Field(default=None, ge=3)
    """File descriptor of a second inherited listening socket, where several processes accept from the first.
    This process alone answers there, so that Prometheus can read the metrics of each.
    """
    engine_endpoint: str
    """Where the base's engines listen, `ipc://...` or `tcp://...`, separated by commas."""
    base_path: Path
    """The base model's directory: its tokenizer and chat template are read, its weights are not."""
    base_name: BaseName
    """Name the base model is sold under."""
    tool_format: ToolFormatName = "auto"
    """How the base model writes tool calls: `auto` finds it in the chat template, `none` offers no tools."""
    reasoning_format: ReasoningFormatName = "auto"
    """How the base model delimits its thinking: `auto` finds it in the chat template, `none`: it has none."""
    reasoning_budgets: ReasoningBudgets = {}
    """By `reasoning_effort`, as a JSON object: after how many tokens of thinking the answer begins; null: no
    bound. In place of the default of each effort that it names."""
    redis_url: str
    name: str = Field(default_factory=lambda: f"api-{socket.gethostname()}-{os.getpid()}")
    """Name of this process in its log and the engine's. Default: from its host and process id."""
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    body_timeout: float = Field(default=30.0, gt=0)
    """Seconds for a request's body to arrive; for a file, seconds without a byte."""
    max_file_bytes: int = Field(default=8 * 1024**3, ge=1024)
    """Largest body with a file, whatever the caller's plan allows."""
    min_file_rate: float = Field(default=16 * 1024, gt=0)
    """Lowest average rate of a file upload, in bytes per second."""
    ping_interval: float = Field(default=15.0, gt=0)
    """Seconds of silence on a stream before a comment is sent."""
    drain_timeout: int = Field(default=30, ge=1)
    """Seconds that open requests have to finish after SIGTERM."""
    log_level: str = "info"
    log_format: Literal["json", "console", "auto"] = "auto"

    @property
    def engine_endpoints(self) -> tuple[str, ...]:
        return parse_endpoints(self.engine_endpoint)

    @property
    def first_base(self) -> ServedBase:
        return ServedBase(
            name=self.base_name,
            path=self.base_path,
            engine_endpoint=self.engine_endpoint,
            tool_format=self.tool_format,
            reasoning_format=self.reasoning_format,
            reasoning_budgets=self.reasoning_budgets,
        )

    @field_validator("engine_endpoint")
    @classmethod
    def _names_engines(cls, endpoints: str) -> str:
        return checked_endpoints(endpoints)


class ConnectionSettings(BaseSettings):
    """Settings of client connections, under the same prefix."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_API_")

    head_timeout: float = Field(default=20.0, gt=0)
    """Seconds in which a request line and headers must arrive: from the connection's beginning, later from
    their first byte."""
    keep_alive: int = Field(default=75, ge=1)
    """Seconds an idle connection is kept."""
    write_timeout: float = Field(default=60.0, gt=0)
    """Seconds that a client can leave sent data unread before its connection is aborted."""
    backlog: int = Field(default=2048, ge=1)
    forwarded_allow_ips: str = ""
    """Proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted: addresses and networks, separated by
    commas, or `*` for every peer. Empty: none.
    """

    @field_validator("forwarded_allow_ips")
    @classmethod
    def _are_addresses(cls, written: str) -> str:
        proxies = [one.strip() for one in written.split(",") if one.strip()]
        if proxies == ["*"]:
            return "*"
        for one in proxies:
            try:
                ip_network(one)
            except ValueError:
                raise ValueError(
                    f"{one[:60]!r} is not an IP address or network, such as 10.0.0.0/8"
                ) from None
        return ",".join(proxies)
