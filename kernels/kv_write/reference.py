"""The KV write in torch, now a part of `kernels.rope_kv`."""

from __future__ import annotations

from kernels.rope_kv.reference import kv_rows, kv_write_reference

__all__ = ["kv_rows", "kv_write_reference"]
