"""Says what an engine can run on, and which weight formats it supports there.

Detects a GPU without torch, for processes that must not load it.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

QUANTIZATIONS = {"cpu": ("none", "int8"), "cuda": ("none", "fp8", "int4")}
"""Formats of the base's weights, by kind of device."""
_NAMES = {"cpu": "a CPU", "cuda": "a GPU"}


def refusal(kind: str, quantization: str, kv_dtype: str = "auto") -> str | None:
    """Returns why `kind` ("cpu" or "cuda") cannot serve with these formats; None when it can."""
    known = QUANTIZATIONS[kind]
    if quantization not in known:
        there = ", ".join(known)
        return f"quantization {quantization} is not supported on {_NAMES[kind]}; use one of {there}"
    if kv_dtype == "fp8" and kind == "cpu":
        return "kv_dtype fp8 needs a GPU; use auto"
    return None


def device_kind(wanted: str) -> str:
    """Returns "cpu" or "cuda" for "auto", "cpu" or "cuda". Raises ValueError when there is no GPU."""
    if wanted == "cpu":
        return "cpu"
    found = num_gpus()
    if wanted == "cuda" and not found:
        raise ValueError("device is cuda, but the NVIDIA driver finds no GPU on this machine")
    return "cuda" if found else "cpu"


def num_gpus() -> int:
    """Returns the number of GPUs that the NVIDIA driver shows this process; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def host_memory() -> int:
    """Returns the bytes of memory available to this process: the machine's, or its container's limit."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return installed
    return min(installed, int(limit)) if limit.isdigit() else installed
