"""What an engine process is told from outside: environment variables that begin with ROOTSTOCK_ENGINE_.

Built by process mains only; everything else receives values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class EngineSettings(BaseSettings):
    """One engine: its base model, where it listens, and how much it takes on."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_ENGINE_", frozen=True, extra="forbid")

    base: Path | None = None
    """Folder of the base model in Hugging Face layout. A null engine speaks its vocabulary, if given."""
    base_name: Annotated[str, Field(pattern=r"^[a-z0-9._-]{1,64}$")] = "base"
    """Name the base is sold under."""
    quantization: Literal["none", "int8"] = "none"
    null: bool = False
    """No model: made-up tokens at full speed, for tests and benchmarks of everything around the model."""
    null_step_seconds: Annotated[float, Field(ge=0)] = 0.0
    """How long a null engine's step takes."""
    null_depth: Annotated[int, Field(ge=0, le=1)] = 0
    """1: a null engine launches a step before the last one is over, as a GPU's does."""
    engine_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "engine-0"
    """Names this deployment slot, across restarts."""
    endpoint: str = "tcp://127.0.0.1:5700"
    """ZMQ address to listen on: tcp://HOST:PORT or ipc:///PATH. Whoever can connect can use the engine."""
    redis_url: str = "redis://127.0.0.1:6379/0"
    """Where the usage journal goes."""
    data_dir: Path = Path("var")
    """Holds `engine/ENGINE_ID`: in-flight table and usage spool. Must outlive the process."""
    artifacts_dir: Path = Path("var/artifacts")
    """Packed adapters, by digest."""
    num_blocks: Annotated[int | None, Field(ge=2)] = None
    """KV blocks of 16 tokens. Unset: as many as fit `kv_bytes`."""
    kv_bytes: Annotated[int, Field(ge=1 << 20)] = 1 << 30
    """Memory for keys and values."""
    max_rows: Annotated[int, Field(ge=1, le=4096)] = 256
    """Sequences that may run at once."""
    max_batch_tokens: Annotated[int, Field(ge=16)] = 2048
    """Tokens of one step, over all rows: longer prompts are prefilled in several."""
    num_slots: Annotated[int, Field(ge=1, le=4096)] = 64
    """Adapters that may be in memory at once."""
    threads: Annotated[int, Field(ge=1)] = 1
    """Of the CPU's arithmetic."""
    context_length: Annotated[int | None, Field(ge=16)] = None
    """Prompt and completion together. Unset: what the base was trained for."""
    queue_limit: Annotated[int, Field(ge=1)] = 1024
    """Requests that may wait; past it they are rejected as overloaded."""
    drain_seconds: Annotated[float, Field(ge=0)] = 30.0
    """How long running requests have to finish after SIGTERM."""

    @field_validator("endpoint")
    @classmethod
    def _known_transport(cls, value: str) -> str:
        if not value.startswith(("tcp://", "ipc://")):
            raise ValueError("must begin with tcp:// or ipc://")
        return value

    @property
    def state_dir(self) -> Path:
        """This engine's own files."""
        return self.data_dir / "engine" / self.engine_id
