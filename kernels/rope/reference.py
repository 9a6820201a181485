"""RoPE in torch, now a part of `kernels.rope_kv`."""

from __future__ import annotations

from kernels.rope_kv.reference import rope_reference

__all__ = ["rope_reference"]
