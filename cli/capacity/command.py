"""Adds `rootstock plan-capacity` to the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.errors import CliError, UsageError

capacity_app = typer.Typer()


@capacity_app.command("plan-capacity")
def plan_capacity(
    model: Annotated[
        str, typer.Option(help="A checkpoint's directory or config.json, or llama-3.1-8b, -70b.")
    ],
    requests_per_second: Annotated[float, typer.Option(help="Requests that arrive, all replicas together.")],
    prompt_tokens: Annotated[float, typer.Option(help="Mean length of prompts.")] = 161,
    output_tokens: Annotated[float, typer.Option(help="Mean length of outputs.")] = 338,
    output_variation: Annotated[
        float, typer.Option(min=0, help="Variance of output lengths over their squared mean; 0: all alike.")
    ] = 1.0,
    adapters: Annotated[int, typer.Option(min=0, help="Adapters that requests ask for.")] = 0,
    rank: Annotated[int, typer.Option(min=1, max=256, help="Rank of the adapters.")] = 16,
    zipf: Annotated[float, typer.Option(min=0, help="Exponent of the adapters' popularity.")] = 1.0,
    quantization: Annotated[str, typer.Option(help="Weight format: none, fp8 or int4.")] = "fp8",
    kv_dtype: Annotated[str, typer.Option(help="Of keys and values: auto or fp8.")] = "auto",
    gpu: Annotated[str, typer.Option(help="h200 or h100.")] = "h200",
    tensor_parallel: Annotated[int, typer.Option(help="GPUs of one replica: 1, 2, 4 or 8.")] = 1,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs that there are. Default: as few as meet the targets.")
    ] = None,
    max_rows: Annotated[int, typer.Option(min=1, max=4096, help="ROOTSTOCK_ENGINE_MAX_ROWS.")] = 256,
    max_batch_tokens: Annotated[int, typer.Option(min=16, help="ROOTSTOCK_ENGINE_MAX_BATCH_TOKENS.")] = 2048,
    slots: Annotated[int, typer.Option(min=1, max=4096, help="ROOTSTOCK_DEVICE_NUM_SLOTS.")] = 256,
    ttft_target_ms: Annotated[float, typer.Option(help="Time to first token, p99.")] = 500.0,
    token_target_ms: Annotated[float, typer.Option(help="Time between tokens, p99.")] = 50.0,
    price: Annotated[float | None, typer.Option(min=0, help="USD per GPU-hour.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Plan replicas, memory, latency and cost for a model, its adapters and a load."""
    from cli.capacity.report import print_json, print_tables
    from engine.device.capabilities import refusal
    from engine.planner.errors import InvalidPlan, NoPlan
    from engine.planner.hardware import GPUS, TENSOR_PARALLEL_SIZES
    from engine.planner.plan import Deployment, plan_capacity
    from engine.planner.shapes import find_shape
    from engine.planner.workload import AdapterLoad, EngineLimits, Load, Targets

    _one_of("--gpu", gpu, list(GPUS))
    _one_of("--tensor-parallel", tensor_parallel, TENSOR_PARALLEL_SIZES)
    _one_of("--kv-dtype", kv_dtype, ["auto", "fp8"])
    _one_of("--quantization", quantization, ["none", "fp8", "int4"])
    if (reason := refusal("cuda", quantization, kv_dtype)) is not None:
        raise UsageError(reason)
    for name, value in (
        ("--requests-per-second", requests_per_second),
        ("--prompt-tokens", prompt_tokens),
        ("--output-tokens", output_tokens),
        ("--ttft-target-ms", ttft_target_ms),
        ("--token-target-ms", token_target_ms),
    ):
        if not 0 < value < float("inf"):
            raise UsageError(f"{name} {value:g} must be a positive number")
    try:
        config = find_shape(model)
    except InvalidPlan as error:
        raise UsageError(str(error)) from None
    if config.num_kv_heads % tensor_parallel:
        raise UsageError(
            f"--tensor-parallel {tensor_parallel} does not divide the model's {config.num_kv_heads} "
            "key-value heads: pass a smaller one"
        )
    deployment = Deployment(
        config, quantization, kv_dtype, GPUS[gpu], tensor_parallel,
        EngineLimits(max_rows, max_batch_tokens, slots), AdapterLoad(adapters, rank, zipf=zipf),
    )  # fmt: skip
    load = Load(requests_per_second, prompt_tokens, output_tokens, output_variation)
    targets = Targets(ttft_target_ms / 1e3, token_target_ms / 1e3)
    try:
        plan = plan_capacity(deployment, load, targets, gpus, price)
    except InvalidPlan as error:
        raise UsageError(str(error)) from None
    except NoPlan as error:
        raise CliError(str(error)) from None
    (print_json if as_json else print_tables)(plan)


def _one_of(option: str, value: object, known: object) -> None:
    if value not in known:  # type: ignore[operator]
        there = ", ".join(str(one) for one in known)  # type: ignore[attr-defined]
        raise UsageError(f"{option} {value} is not supported: pass one of {there}")
