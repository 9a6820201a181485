"""Checks the options of `rootstock up`: which base models it serves, on which devices, and where."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.base_options import parse_bases
from cli.client_key import make_client_key
from cli.cluster.programs import LOCAL, RayPlan, require_ray
from cli.cluster.settings import fetches_from_store, head_settings
from cli.errors import CliError, UsageError
from cli.programs import LocalBase
from engine.device.capabilities import device_kind, num_gpus
from engine.files import write_secret


@dataclass(frozen=True)
class UpOptions:
    """The command line of `rootstock up`."""

    data: Path
    host: str
    port: int
    bases: Sequence[str]
    """`[NAME=]DIR` each."""
    base_name: str | None
    quantizations: Sequence[str]
    """`[NAME=]FORMAT` each."""
    drafters: Sequence[str] = ()
    """`[NAME=]DIR` each."""
    tensor_parallel: int = 1
    """Processes that share each step of the engine."""
    replicas: int = 1
    """Engines of each base that take requests."""
    prefill_replicas: int = 0
    """Engines that compute long prompts for them."""
    api_processes: int = 1
    ray: str | None = None
    """`local`, or HOST:PORT of a Ray head; None: engines run on this machine without Ray."""
    replicas_min: int | None = None
    replicas_max: int | None = None
    demo: bool = False
    showcase: bool = False
    once: bool = False

    def chosen_bases(self) -> tuple[LocalBase, ...]:
        """Returns the base models. Raises `UsageError`, `CliError` for a directory that is none."""
        options = self.bases, self.base_name, self.quantizations, self.drafters
        return parse_bases(*options, is_demo=self.demo)

    @property
    def num_engines(self) -> int:
        """Engines of all bases together, without Ray."""
        return self.replicas * max(1, len(self.bases)) + self.prefill_replicas

    def chosen_gpus(self) -> list[str]:
        """Returns the GPUs of each engine, as CUDA_VISIBLE_DEVICES names them; none for one engine, and on a
        CPU. Raises `UsageError` when there are too few.
        """
        if (
            self.ray is not None
            or self.num_engines == 1
            or device_kind(os.environ.get("ROOTSTOCK_DEVICE_DEVICE", "auto")) == "cpu"
        ):
            return []
        named = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
        names = named or [str(number) for number in range(num_gpus())]
        each = self.tensor_parallel
        if self.prefill_replicas and len(names) < self.num_engines:
            raise UsageError(
                f"--replicas {self.replicas} and --prefill-replicas {self.prefill_replicas} need "
                f"{self.num_engines} GPUs, and there are {len(names)}: lower one of them"
            )
        if len(names) < self.num_engines * each:
            bases = max(1, len(self.bases))
            option = f"--replicas {self.replicas}" + (f" of {bases} bases" if bases > 1 else "")
            needed = "as many GPUs" if each == 1 else f"{each} GPUs for each (--tensor-parallel {each})"
            raise UsageError(
                f"{option} needs {needed}, and there are {len(names)}: "
                f"pass --replicas {max(1, len(names) // each // bases)}"
            )
        return [",".join(names[number * each : (number + 1) * each]) for number in range(self.num_engines)]

    def chosen_ray(self, data: Path) -> RayPlan | None:
        """Returns how engines run on Ray, with the keys in the data folder; None without --ray. Raises
        `UsageError`, `CliError` where Ray is missing.
        """
        bounds = {"--replicas-min": self.replicas_min, "--replicas-max": self.replicas_max}
        if self.ray is None:
            given = [name for name, value in bounds.items() if value is not None]
            if given:
                raise UsageError(f"{given[0]} is for clusters: pass --ray too, or use --replicas")
            return None
        least = self.replicas_min or self.replicas
        most = self.replicas_max or least
        if least > most:
            raise UsageError(f"--replicas-min {least} is more than --replicas-max {most}: lower it")
        is_head = self.ray == LOCAL
        if not is_head and "ROOTSTOCK_REDIS_URL" not in os.environ:
            raise UsageError(
                f"--ray {self.ray} runs engines on other hosts, which a private Redis does not serve: set "
                "ROOTSTOCK_REDIS_URL to one that all hosts reach"
            )
        require_ray()
        token, secret = data / "ray.token", data / "clients.key"
        try:
            write_secret(token, secrets.token_hex(32))
            make_client_key(secret)
            settings = head_settings()
            fetches = fetches_from_store(os.environ)
        except (OSError, ValueError) as error:
            raise CliError(str(error)) from error
        is_gpu = device_kind(os.environ.get("ROOTSTOCK_DEVICE_DEVICE", "auto")) == "cuda"
        return RayPlan(
            address=f"127.0.0.1:{settings.port}" if is_head else self.ray,
            is_head=is_head,
            token=token,
            secret=secret,
            replicas_min=least,
            replicas_max=most,
            gpus=self.tensor_parallel if is_gpu else 0,
            node_cpus=settings.node_cpus,
            fetches=fetches,
        )

    def check_replicas(self) -> None:
        """Raises `UsageError` when the environment gives several engines one address or name, or for prefill
        replicas where there can be none.
        """
        if self.prefill_replicas:
            self._check_prefill()
        several = f"--replicas {self.replicas}" if self.replicas > 1 else "--base more than once"
        option = several if self.ray is None else "--ray"
        for name in ("ROOTSTOCK_ENGINE_ENDPOINT", "ROOTSTOCK_ENGINE_ENGINE_ID"):
            if (self.replicas > 1 or len(self.bases) > 1 or self.ray is not None) and name in os.environ:
                raise UsageError(f"{name} is set, and {option} gives each engine its own: unset it")

    def _check_prefill(self) -> None:
        option = f"--prefill-replicas {self.prefill_replicas}"
        if self.ray is not None:
            raise UsageError(f"{option} is not for clusters on Ray: leave out one of --ray and it")
        if self.tensor_parallel > 1:
            raise UsageError(f"{option} needs engines of one device each: leave out --tensor-parallel")
        if len(self.bases) > 1:
            raise UsageError(f"{option} serves one base model: pass --base once, or leave it out")
        for name in ("ROOTSTOCK_PREFILL_ENDPOINT", "ROOTSTOCK_PREFILL_SOURCES", "ROOTSTOCK_ENGINE_ENGINE_ID"):
            if name in os.environ:
                raise UsageError(f"{name} is set, and {option} gives each engine its own: unset it")
