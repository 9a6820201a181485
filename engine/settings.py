"""What an engine process is told from outside: environment variables that begin with ROOTSTOCK_ENGINE_.

Built by process mains only; everything else receives values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class EngineSettings(BaseSettings):
    """One engine: its base model, where it listens, and how much it takes on."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_ENGINE_", frozen=True, extra="forbid")

    base: Path | None = None
    """Folder of the base model in Hugging Face layout. A null engine speaks its vocabulary, if given."""
    base_name: str = Field("base", pattern=r"^[a-z0-9._-]{1,64}$")
    """Name the base is sold under."""
    quantization: Literal["none", "int8"] = "none"
    null: bool = False
    """No model: made-up tokens at full speed, for tests and benchmarks of everything around the model."""
    null_step_seconds: float = Field(0.0, ge=0)
    """How long a null engine's step takes."""
    engine_id: str = Field("engine-0", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """Names this deployment slot, across restarts."""
    endpoint: str = "tcp://127.0.0.1:5700"
    """ZMQ address to listen on: tcp://HOST:PORT or ipc:///PATH. Whoever can connect can use the engine."""
    redis_url: str = "redis://127.0.0.1:6379/0"
    """Where the usage journal goes."""
    data_dir: Path = Path("var")
    """Holds `engine/ENGINE_ID`: in-flight table and usage spool. Must outlive the process."""
    artifacts_dir: Path = Path("var/artifacts")
    """Packed adapters, by digest."""
    num_blocks: int | None = Field(None, ge=2)
    """KV blocks of 16 tokens. Unset: as many as fit `kv_bytes`."""
    kv_bytes: int = Field(1 << 30, ge=1 << 20)
    """Memory for keys and values."""
    max_rows: int = Field(256, ge=1, le=4096)
    """Sequences that may run at once."""
    max_batch_tokens: int = Field(2048, ge=16)
    """Tokens of one step, over all rows: longer prompts are prefilled in several."""
    num_slots: int = Field(64, ge=1, le=4096)
    """Adapters that may be in memory at once."""
    threads: int = Field(1, ge=1)
    """Of the CPU's arithmetic."""
    context_length: int | None = Field(None, ge=16)
    """Prompt and completion together. Unset: what the base was trained for."""
    queue_limit: int = Field(1024, ge=1)
    """Requests that may wait; past it they are rejected as overloaded."""
    drain_seconds: float = Field(30.0, ge=0)
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
