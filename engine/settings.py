"""Reads the engine's settings from environment variables: ROOTSTOCK_ENGINE_* and, for its device,
ROOTSTOCK_DEVICE_*.

Only process mains read settings; everything else receives values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from engine.protocol import PriorityClass
from engine.scheduling.validation import EngineLimits
from engine.signing.settings import VerificationSettings
from engine.transport.curve import decode_key

FLEX_PART = 128
"""On a CPU a step with this part of its tokens takes several times as long as a decode step; on a GPU hardly
longer."""

_MOVED = ("QUANTIZATION", "NUM_BLOCKS", "KV_BYTES", "NUM_SLOTS", "THREADS")


def moved_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns variables that are set but no longer read, with their new names."""
    names = {f"ROOTSTOCK_ENGINE_{name}": f"ROOTSTOCK_DEVICE_{name}" for name in _MOVED}
    return {old: new for old, new in names.items() if old in environment}


class DeviceSettings(BaseSettings):
    """The device an engine runs on, and how its memory is used."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_DEVICE_", frozen=True, extra="forbid")

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU if there is one."""
    quantization: Literal["none", "int8", "fp8", "int4"] = "none"
    """Of the base's weights. On a CPU none and int8, on a GPU none, fp8 and int4."""
    kv_dtype: Literal["auto", "fp8"] = "auto"
    """Of keys and values. auto: the model's compute type. fp8 needs a GPU."""
    memory_share: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Share of a GPU's memory for weights, adapters, scratch, keys and values together."""
    num_blocks: Annotated[int | None, Field(ge=2)] = None
    """KV blocks of 16 tokens. Unset: as many as fit `kv_bytes`."""
    kv_bytes: Annotated[int | None, Field(ge=1 << 20)] = None
    """Memory for keys and values. Unset: 1 GiB on a CPU; on a GPU what is left of `memory_share`."""
    num_slots: Annotated[int | None, Field(ge=1, le=4096)] = None
    """Adapters that may be in memory at once. Unset: 64 on a CPU, 256 on a GPU."""
    adapter_bytes: Annotated[int | None, Field(ge=1 << 20)] = None
    """GPU memory for adapters, as many as fit up to `num_slots`. Unset: what `num_slots` of rank 16 take, at
    most a quarter of what weights and scratch leave."""
    adapter_cache_bytes: Annotated[int | None, Field(ge=1 << 20)] = None
    """Page-locked host memory that caches adapters on their way to a GPU. Unset: as much as `adapter_bytes`,
    at most an eighth of the host's memory."""
    memory_bandwidth: Annotated[float | None, Field(gt=0)] = None
    """Bytes per second, read and written, that the memory copies: steps are compared with it. Unset: measured
    when a GPU's engine starts, unknown on a CPU."""
    threads: Annotated[int, Field(ge=1)] = 1
    """CPU threads for arithmetic."""
    tensor_parallel: Annotated[int, Field(ge=1, le=8)] = 1
    """Processes that share each step, each with a part of every layer."""
    cuda_graphs: bool = True
    """False launches steps kernel by kernel, for debugging: slower, but ready sooner."""
    max_graph_rows: Annotated[int | None, Field(ge=0)] = None
    """Decode steps with more rows are launched kernel by kernel. Unset: every size is captured."""
    batch_invariant: bool = False
    """Gives every product the same number of rows, so that a request's bits do not depend on its batch."""
    mask_threads: Annotated[int, Field(ge=1)] = max(1, min(16, (os.cpu_count() or 1) * 7 // 8))
    """CPU threads that find the tokens a grammar allows next, while a GPU computes. Unset: seven
    of eight cores, at most 16."""


class SchedulingSettings(BaseSettings):
    """Queue limits and waiting times, by service class."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_ENGINE_", frozen=True, extra="forbid")

    queue_limit: Annotated[int, Field(ge=1)] = 1024
    """Requests that may wait; beyond it they are rejected as overloaded."""
    adapter_wait_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that a request waits for its adapter to load before it is rejected as adapter_loading."""
    flex_batch_tokens: Annotated[int | None, Field(ge=1)] = None
    """Of a step's tokens, those that FLEX prompts may take while a higher class has requests: they delay the
    others' next tokens. Unset: one in 128, at least 16."""
    flex_interval: Annotated[int, Field(ge=1)] = 8
    """They take that share in one of this many steps."""
    flex_wait_seconds: Annotated[float, Field(ge=0)] = 30.0
    """Seconds that a FLEX request waits for leftover capacity, before FLEX has turns of its own."""
    priority_step_seconds: Annotated[float | None, Field(gt=0)] = None
    """Seconds that a step may take on average while PRIORITY requests arrive: other classes get no more rows
    than that allows, at least an eighth. Unset: no bound."""
    priority_ttft_seconds: Annotated[float, Field(gt=0)] = 5.0
    """PRIORITY requests without a target of their own are rejected as overloaded when their first token is
    predicted to take longer; "inf" lets them wait."""
    default_ttft_seconds: Annotated[float, Field(gt=0)] = 30.0
    """The same for DEFAULT."""
    flex_ttft_seconds: Annotated[float, Field(gt=0)] = 300.0
    """The same for FLEX."""
    speculation: bool = False
    """Verifies several guessed tokens at a time, where measured times say that it is faster: those that
    followed the same ones before, that a grammar forces, or that a draft adapter guesses."""
    drafter: Path | None = None
    """Folder of a draft adapter on the base: a PEFT checkpoint with a drafter.json. It guesses for the base,
    and for adapters without a draft adapter of their own. Needs `speculation`."""
    packed_drafter: str | None = None
    """The same for one that is among the packed adapters, for engines that fetch those: what `rootstock base
    publish-drafter` prints."""

    @model_validator(mode="after")
    def _drafter_is_used(self) -> SchedulingSettings:
        given = {"DRAFTER": self.drafter, "PACKED_DRAFTER": self.packed_drafter}
        named = [f"ROOTSTOCK_ENGINE_{name}" for name, value in given.items() if value is not None]
        if named and not self.speculation:
            raise ValueError(
                f"{named[0]} is set and nothing is drafted: set ROOTSTOCK_ENGINE_SPECULATION=true too"
            )
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} name a draft adapter each: unset one of them")
        return self

    @property
    def ttft_targets(self) -> dict[PriorityClass, float]:
        """Seconds to the first token, by class."""
        return {
            PriorityClass.PRIORITY: self.priority_ttft_seconds,
            PriorityClass.DEFAULT: self.default_ttft_seconds,
            PriorityClass.FLEX: self.flex_ttft_seconds,
        }


class ClusterSettings(BaseSettings):
    """How clients on other hosts reach an engine."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_CLUSTER_", frozen=True, extra="forbid")

    client_keys: str = ""
    """Public keys of the clients that may connect, 64 hexadecimal digits each, separated by commas. If set,
    connections are encrypted, and the engine registers in Redis with a key that it makes at its start."""
    host: str = ""
    """The name or address under which clients reach this host. Empty: the endpoint's."""

    @field_validator("client_keys")
    @classmethod
    def _are_keys(cls, value: str) -> str:
        for one in value.split(",") if value else ():
            decode_key(one.strip())
        return value

    @property
    def keys(self) -> frozenset[bytes]:
        return frozenset(decode_key(one.strip()) for one in self.client_keys.split(",") if one.strip())


class PrefillSettings(BaseSettings):
    """Prompts that are computed on engines of their own, apart from decoding."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_PREFILL_", frozen=True, extra="forbid")

    endpoint: str = ""
    """Where this engine computes prompts for others: tcp://HOST:PORT or ipc:///PATH to listen on. Empty: it
    does not. If set, the API sends it no requests."""
    sources: str = ""
    """Where engines compute prompts for this one: their endpoints, separated by commas."""
    key_file: Path | None = None
    """A file with a secret key, 64 hexadecimal digits, that all these engines have: connections are then
    encrypted. While it is rotated it has two lines: the key to use, then the other that is accepted. Unset:
    any process that can connect may read what prompts' keys and values tell of them."""
    min_tokens: Annotated[int, Field(ge=16)] = 4096
    """Tokens of a prompt, without those that are cached, from which on it is computed elsewhere."""
    max_wait_seconds: Annotated[float, Field(ge=0)] = 5.0
    """A prompt that is expected to wait longer for every such engine is computed where its request is."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Seconds without any progress after which the rest of a prompt is computed where its request is."""

    @field_validator("endpoint", "sources")
    @classmethod
    def _known_transport(cls, value: str) -> str:
        for one in (part.strip() for part in value.split(",")) if value else ():
            port = one.rpartition(":")[2]
            if not one.startswith("ipc:///") and not (one.startswith("tcp://") and port.isdigit()):
                raise ValueError(f"{one!r} must be tcp://HOST:PORT or ipc:///PATH")
        return value

    @property
    def source_endpoints(self) -> list[str]:
        return [one.strip() for one in self.sources.split(",") if one.strip()]


class EngineSettings(BaseSettings):
    """One engine: its base model, where it listens, and how much it takes on."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_ENGINE_", frozen=True, extra="forbid")

    base: Path | None = None
    """Folder of the base model in Hugging Face layout. A null engine uses its vocabulary, if given."""
    base_name: Annotated[str, Field(pattern=r"^[a-z0-9._-]{1,64}$")] = "base"
    """Name under which the base is served."""
    null: bool = False
    """True serves made-up tokens at full speed without a model, for tests and benchmarks of everything around
    it."""
    null_step_seconds: Annotated[float, Field(ge=0)] = 0.0
    """How long a null engine's step takes."""
    null_depth: Annotated[int, Field(ge=0, le=1)] = 0
    """1: a null engine launches a step before the last one is over, like a GPU."""
    engine_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "engine-0"
    """Name of this deployment slot, across restarts."""
    endpoint: str = "tcp://127.0.0.1:5700"
    """ZMQ address to listen on: tcp://HOST:PORT (port 0 picks a free one) or ipc:///PATH. Unless
    ROOTSTOCK_CLUSTER_CLIENT_KEYS is set, any process that can connect can use the engine."""
    redis_url: str = "redis://127.0.0.1:6379/0"
    """Redis of the usage journal."""
    metrics_endpoint: Annotated[str, Field(pattern=r"^$|^\S*:\d{1,5}$")] = ""
    """Where /metrics is served over HTTP under vLLM's names: HOST:PORT (port 0 picks a free one). It names
    adapters and asks for no key. Empty: nowhere."""
    data_dir: Path = Path("var")
    """Holds `engine/ENGINE_ID`: in-flight table and usage spool. Must outlive the process."""
    artifacts_dir: Path = Path("var/artifacts")
    """Packed adapters, by digest."""
    max_rows: Annotated[int, Field(ge=1, le=4096)] = 256
    """Sequences that may run at once."""
    max_batch_tokens: Annotated[int, Field(ge=16)] = 2048
    """Tokens of one step, over all rows: longer prompts are prefilled in several steps."""
    context_length: Annotated[int | None, Field(ge=16)] = None
    """Prompt and completion together. Unset: the base's own limit."""
    scheduling: SchedulingSettings = Field(default_factory=SchedulingSettings)
    drain_seconds: Annotated[float, Field(ge=0)] = 30.0
    """How long running requests have to finish after SIGTERM."""
    cluster: ClusterSettings = Field(default_factory=ClusterSettings)
    prefill: PrefillSettings = Field(default_factory=PrefillSettings)
    signing: VerificationSettings = Field(default_factory=VerificationSettings)

    @field_validator("endpoint")
    @classmethod
    def _known_transport(cls, value: str) -> str:
        if not value.startswith(("tcp://", "ipc://")):
            raise ValueError("must begin with tcp:// or ipc://")
        return value

    @model_validator(mode="after")
    def _keys_are_used(self) -> EngineSettings:
        if self.cluster.client_keys and not self.endpoint.startswith("tcp://"):
            raise ValueError(
                f"ROOTSTOCK_CLUSTER_CLIENT_KEYS is for engines on TCP, and ROOTSTOCK_ENGINE_ENDPOINT is "
                f"{self.endpoint}: unset the keys, or listen on tcp://HOST:PORT"
            )
        return self

    @model_validator(mode="after")
    def _prefill_has_a_model(self) -> EngineSettings:
        if self.null and (self.prefill.endpoint or self.prefill.sources):
            raise ValueError("a null engine has no keys and values to move: unset ROOTSTOCK_PREFILL_*")
        return self

    def limits(self, context_length: int, vocab_size: int) -> EngineLimits:
        """Returns the limits of an engine on a model with these sizes.

        Raises ValueError where settings contradict each other.
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
        """Folder of this engine's own files."""
        return self.data_dir / "engine" / self.engine_id
