"""Checks the options of `rootstock up`: which base model it serves, and in which weight format."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cli.demo import DEMO_BASE
from cli.errors import CliError, UsageError
from engine.device.capabilities import device_kind, num_gpus, refusal

_DEMO_QUANTIZATION = {"cpu": "int8", "cuda": "fp8"}


@dataclass(frozen=True)
class UpOptions:
    """The command line of `rootstock up`."""

    data: Path
    host: str
    port: int
    base: Path | None
    base_name: str | None
    quantization: str | None
    """Weight format of the base model; None: `chosen_quantization` decides."""
    replicas: int = 1
    """Engines."""
    api_processes: int = 1
    demo: bool = False
    showcase: bool = False
    once: bool = False

    def chosen_base(self) -> tuple[Path, str]:
        """Returns directory and name of the base model. Raises `UsageError` when none was given, `CliError`
        for an invalid one.
        """
        base = self.base or (DEMO_BASE if self.demo else None)
        if base is None:
            raise UsageError(
                "no base model: pass --base DIR (Hugging Face layout), or --demo for the one that is included"
            )
        if not (base / "config.json").is_file():
            raise CliError(
                f"{base} holds no config.json: pass a model's directory in Hugging Face layout as --base"
            )
        name = self.base_name or (
            "sapling" if self.demo and self.base is None else base.resolve().name.lower()
        )
        return base.resolve(), name

    def chosen_gpus(self) -> list[str]:
        """Returns the GPU of each engine, as CUDA_VISIBLE_DEVICES names it; none for one engine, and on a
        CPU. Raises `UsageError` when there are too few.
        """
        if self.replicas == 1 or device_kind(os.environ.get("ROOTSTOCK_DEVICE_DEVICE", "auto")) == "cpu":
            return []
        named = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
        names = named or [str(number) for number in range(num_gpus())]
        if len(names) < self.replicas:
            raise UsageError(
                f"--replicas {self.replicas} needs as many GPUs, and there are {len(names)}: "
                f"pass --replicas {len(names)}"
            )
        return names[: self.replicas]

    def check_replicas(self) -> None:
        """Raises `UsageError` when the environment gives several engines one address or name."""
        for name in ("ROOTSTOCK_ENGINE_ENDPOINT", "ROOTSTOCK_ENGINE_ENGINE_ID"):
            if self.replicas > 1 and name in os.environ:
                raise UsageError(
                    f"{name} is set, and --replicas {self.replicas} gives each engine its own: unset it"
                )

    def chosen_quantization(self) -> str:
        """Returns the requested weight format, if the device supports it. The demo's default is the smallest
        that gives the same answers. Raises `UsageError`, before anything starts.
        """
        try:
            kind = device_kind(os.environ.get("ROOTSTOCK_DEVICE_DEVICE", "auto"))
        except ValueError as error:
            raise UsageError(str(error)) from None
        if self.quantization is None:
            return _DEMO_QUANTIZATION[kind] if self.demo else "none"
        reason = refusal(kind, self.quantization)
        if reason is not None:
            raise UsageError(f"--quantization {self.quantization}: {reason}")
        return self.quantization
