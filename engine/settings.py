"""What an engine process is told from outside: environment variables that begin with ROOTSTOCK_ENGINE_ and,
about what it runs on, with ROOTSTOCK_DEVICE_.

Built by process mains only; everything else receives values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from engine.protocol import PriorityClass
from engine.scheduling.validation import EngineLimits

FLEX_PART = 128
"""On a CPU a step of this part takes a few times as long as one that decodes; on a GPU hardly longer."""

_MOVED = ("QUANTIZATION", "NUM_BLOCKS", "KV_BYTES", "NUM_SLOTS", "THREADS")


def moved_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that are set and no longer read, and the names that took their place."""
    names = {f"ROOTSTOCK_ENGINE_{name}": f"ROOTSTOCK_DEVICE_{name}" for name in _MOVED}
    return {old: new for old, new in names.items() if old in environment}


class DeviceSettings(BaseSettings):
    """What an engine runs on, and how the memory there is used."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_DEVICE_", frozen=True, extra="forbid")

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU if there is one."""
    quantization: Literal["none", "int8", "fp8", "int4"] = "none"
    """Of the base's weights. On a CPU none and int8, on a GPU none, fp8 and int4."""
    kv_dtype: Literal["auto", "fp8"] = "auto"
    """Of keys and values. auto: what the model computes in. fp8 is for GPUs."""
    memory_share: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Of a GPU's memory: what weights, adapters, scratch, keys and values may take together."""
    num_blocks: Annotated[int | None, Field(ge=2)] = None
    """KV blocks of 16 tokens. Unset: as many as fit `kv_bytes`."""
    kv_bytes: Annotated[int | None, Field(ge=1 << 20)] = None
    """Memory for keys and values. Unset: 1 GiB on a CPU; on a GPU what is left of `memory_share`."""
    num_slots: Annotated[int | None, Field(ge=1, le=4096)] = None
    """Adapters that may be in memory at once. Unset: 64 on a CPU, 256 on a GPU."""
    adapter_bytes: Annotated[int | None, Field(ge=1 << 20)] = None
    """A GPU's memory for adapters, as many as fit up to `num_slots`. Unset: what `num_slots` of rank 16
    take, at most a quarter of what weights and scratch leave."""
    adapter_cache_bytes: Annotated[int | None, Field(ge=1 << 20)] = None
    """Page-locked host memory for adapters on their way to a GPU, kept there for the next time. Unset: as
    many as `adapter_bytes`, at most an eighth of the host's."""
    memory_bandwidth: Annotated[float | None, Field(gt=0)] = None
    """Bytes per second that the memory copies, read and written: what steps are measured by. Unset: measured
    when a GPU's engine starts, on a CPU not known."""
    threads: Annotated[int, Field(ge=1)] = 1
    """Of the CPU's arithmetic."""
    cuda_graphs: bool = True
    """Off: steps are launched kernel by kernel, for debugging; slower, and ready sooner."""
    max_graph_rows: Annotated[int | None, Field(ge=0)] = None
    """Decode steps of more rows are launched kernel by kernel. Unset: every size is captured."""
    batch_invariant: bool = False
    """Every product has the same number of rows, so that no request's bits depend on how many others run."""


class SchedulingSettings(BaseSettings):
    """Who waits for how long, by class of service."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_ENGINE_", frozen=True, extra="forbid")

    queue_limit: Annotated[int, Field(ge=1)] = 1024
    """Requests that may wait; past it they are rejected as overloaded."""
    adapter_wait_seconds: Annotated[float, Field(gt=0)] = 30.0
    """How long a request waits for its adapter to be loaded before it is rejected as adapter_loading."""
    flex_batch_tokens: Annotated[int | None, Field(ge=1)] = None
    """Of a step's tokens, those that prompts of class FLEX may take while a higher class has requests: what a
    step takes longer for them, others wait longer for a token. Unset: one in 128, 16 at least."""
    flex_interval: Annotated[int, Field(ge=1)] = 8
    """They take it in one of so many steps."""
    flex_wait_seconds: Annotated[float, Field(ge=0)] = 30.0
    """How long a FLEX request waits for what others leave, before FLEX has turns of its own."""
    priority_step_seconds: Annotated[float | None, Field(gt=0)] = None
    """What a step is to take at most, on average, while PRIORITY requests come: other classes get no more
    rows than that allows, an eighth at least. Unset: as many as there are."""
    priority_ttft_seconds: Annotated[float, Field(gt=0)] = 5.0
    """Requests that come without a target of their own are rejected as overloaded when they are predicted to
    wait for longer for their first token; "inf" lets them wait. This is PRIORITY's."""
    default_ttft_seconds: Annotated[float, Field(gt=0)] = 30.0
    """The same for DEFAULT."""
    flex_ttft_seconds: Annotated[float, Field(gt=0)] = 300.0
    """The same for FLEX."""

    @property
    def ttft_targets(self) -> dict[PriorityClass, float]:
        """Seconds, by class."""
        return {
            PriorityClass.PRIORITY: self.priority_ttft_seconds,
            PriorityClass.DEFAULT: self.default_ttft_seconds,
            PriorityClass.FLEX: self.flex_ttft_seconds,
        }


class EngineSettings(BaseSettings):
    """One engine: its base model, where it listens, and how much it takes on."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_ENGINE_", frozen=True, extra="forbid")

    base: Path | None = None
    """Folder of the base model in Hugging Face layout. A null engine speaks its vocabulary, if given."""
    base_name: Annotated[str, Field(pattern=r"^[a-z0-9._-]{1,64}$")] = "base"
    """Name the base is sold under."""
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
    max_rows: Annotated[int, Field(ge=1, le=4096)] = 256
    """Sequences that may run at once."""
    max_batch_tokens: Annotated[int, Field(ge=16)] = 2048
    """Tokens of one step, over all rows: longer prompts are prefilled in several."""
    context_length: Annotated[int | None, Field(ge=16)] = None
    """Prompt and completion together. Unset: what the base was trained for."""
    scheduling: SchedulingSettings = Field(default_factory=SchedulingSettings)
    drain_seconds: Annotated[float, Field(ge=0)] = 30.0
    """How long running requests have to finish after SIGTERM."""

    @field_validator("endpoint")
    @classmethod
    def _known_transport(cls, value: str) -> str:
        if not value.startswith(("tcp://", "ipc://")):
            raise ValueError("must begin with tcp:// or ipc://")
        return value

    def limits(self, context_length: int, vocab_size: int) -> EngineLimits:
        """What the engine takes on, of a model with these sizes.

        Raises ValueError where settings do not go together.
        """
        scheduling = self.scheduling
        return EngineLimits(
            context_length=context_length,
            vocab_size=vocab_size,
            max_batch_tokens=self.max_batch_tokens,
            max_rows=self.max_rows,
            max_waiting=scheduling.queue_limit,
            max_flex_tokens=scheduling.flex_batch_tokens or max(16, self.max_batch_tokens // FLEX_PART),
            flex_interval=scheduling.flex_interval,
            flex_wait_s=scheduling.flex_wait_seconds,
            priority_step_s=scheduling.priority_step_seconds,
            ttft_targets=scheduling.ttft_targets,
            adapter_wait_s=scheduling.adapter_wait_seconds,
        )

    @property
    def state_dir(self) -> Path:
        """This engine's own files."""
        return self.data_dir / "engine" / self.engine_id
