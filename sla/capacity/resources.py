"""Lists the resources whose use is sampled and forecast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["rate", "count", "bytes"]


@dataclass(frozen=True, slots=True)
class Resource:
    id: str
    title: str
    kind: Kind
    is_seasonal: bool
    """Whether it follows the hours of a week; else it only grows."""


OUTPUT_RATE = Resource("output_tokens_per_s", "Output tokens/s", "rate", is_seasonal=True)
REQUEST_RATE = Resource("requests_per_s", "Requests/s", "rate", is_seasonal=True)
PROMPT_RATE = Resource("prompt_tokens_per_s", "Prompt tokens/s", "rate", is_seasonal=True)
BLOCKS = Resource("kv_blocks", "KV blocks in use", "count", is_seasonal=True)
ADAPTERS = Resource("resident_adapters", "Resident adapters", "count", is_seasonal=True)
ADAPTER_BYTES = Resource("adapter_bytes", "Adapter memory", "bytes", is_seasonal=True)
STORAGE = Resource("storage_bytes", "Object store disk", "bytes", is_seasonal=False)
DATABASE = Resource("database_bytes", "PostgreSQL", "bytes", is_seasonal=False)

OF_BASES = (OUTPUT_RATE, REQUEST_RATE, PROMPT_RATE, BLOCKS, ADAPTERS, ADAPTER_BYTES)
SHARED = (STORAGE, DATABASE)
"""Their subject is empty."""
BY_ID = {one.id: one for one in (*OF_BASES, *SHARED)}
