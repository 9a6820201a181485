"""What an engine can run on, and what it can do there.

Owns the table of weight formats by kind of device, the refusals, and how a process that must not load torch
learns whether this machine has a GPU. Refuses to know memory, models and kernels.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

QUANTIZATIONS = {"cpu": ("none", "int8"), "cuda": ("none", "fp8", "int4")}
"""Formats of the base's weights, by kind of device."""
_NAMES = {"cpu": "a CPU", "cuda": "a GPU"}


def refusal(kind: str, quantization: str, kv_dtype: str = "auto") -> str | None:
    """Why `kind` ("cpu" or "cuda") cannot serve so; None when it can."""
    known = QUANTIZATIONS[kind]
    if quantization not in known:
        there = ", ".join(known)
        return f"quantization {quantization} is not for {_NAMES[kind]}; the formats there: {there}"
    if kv_dtype == "fp8" and kind == "cpu":
        return "keys and values in fp8 need a GPU"
    return None


def device_kind(wanted: str) -> str:
    """ "cpu" or "cuda" for "auto", "cpu" or "cuda". Raises ValueError when there is no GPU to be had."""
    if wanted == "cpu":
        return "cpu"
    found = num_gpus()
    if wanted == "cuda" and not found:
        raise ValueError("device is cuda, but the NVIDIA driver finds no GPU on this machine")
    return "cuda" if found else "cpu"


def num_gpus() -> int:
    """GPUs that the NVIDIA driver shows this process; 0 without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def host_memory() -> int:
    """Bytes of memory that this process may hope for: the machine's, or its container's limit."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return installed
    return min(installed, int(limit)) if limit.isdigit() else installed
