"""Defines `rootstock adapter` and `rootstock plan`: names and help of their commands and options.

Heavy modules are imported by the command that needs them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.printing import Data, print_rows

adapter_app = typer.Typer(help="LoRA adapters of a tenant.", no_args_is_help=True)
plan_app = typer.Typer(
    help="Plans: limits, service tiers and fees of the tenants on them.", no_args_is_help=True
)

Tenant = Annotated[str, typer.Argument(help="Tenant's name.")]
Name = Annotated[str, typer.Argument(help="The adapter's name or id.")]
Version = Annotated[int, typer.Argument(min=1, help="The version's number.")]

MaxAdapters = Annotated[int | None, typer.Option(min=0, help="Adapters a tenant may have.")]
MaxFileBytes = Annotated[int | None, typer.Option(min=0, help="Largest file a tenant may upload, in bytes.")]
PinnedAdapters = Annotated[
    int | None, typer.Option(min=0, help="Adapters of a tenant that stay loaded in the engine's memory.")
]
Gate = Annotated[
    list[str] | None, typer.Option("--gate", help="A calibration threshold, NAME=NUMBER; repeatable.")
]
Term = Annotated[
    list[str] | None,
    typer.Option(
        "--term",
        help="A term of a service tier, CLASS.NAME=JSON, such as priority.allowed=true; repeatable.",
    ),
]
TERMS_HEADER = (
    *(
        "CLASS",
        "ALLOWED",
        "PRICE",
        "CONTRACTED TOKENS/MIN",
        "TTFT MS",
        "WAIT MS",
        "MIN TOKENS/S",
        "AVAILABLE PPM",
    ),
    *("AT RATE PPM", "CREDITS"),
)
PlanLimits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        help="A limit per tenant, METRIC=AMOUNT, such as tokens_per_minute=100000, or METRIC=none; "
        "repeatable.",
    ),
]
PLAN_HEADER = ("NAME", "ADAPTERS", "FILE BYTES", "PINNED", "FEE", "USAGE IN IT", "GATE", "LIMITS")
MonthlyFee = Annotated[int | None, typer.Option(min=0, help="Micro-USD a month, in addition to usage.")]
ResponseDays = Annotated[
    int | None,
    typer.Option(help="Days for which stored responses and conversations are kept, 30 by default."),
]
IncludedUsage = Annotated[
    int | None, typer.Option(min=0, help="Micro-USD of a month's usage that the fee covers.")
]
BatchPrice = Annotated[
    int | None, typer.Option(min=0, help="Percentage of the price of tokens that batches pay.")
]


@adapter_app.command("add")
def adapter_add(
    tenant: Tenant,
    name: Annotated[
        str,
        typer.Argument(help="Name of the adapter: a-z 0-9 . _ -; of several base models, BASE:NAME."),
    ],
    directory: Annotated[
        Path, typer.Argument(help="PEFT directory: adapter_config.json, adapter_model.safetensors.")
    ],
    drafter: Annotated[
        Path | None,
        typer.Option(help="Directory of a draft adapter trained for this one: PEFT with a drafter.json."),
    ] = None,
    data: Data = None,
) -> None:
    """Pack a PEFT adapter, activate it under its name, and print the model name to request."""
    from cli import service_access

    for model in service_access.add_adapters(data, tenant, {name: directory}, drafter):
        print(model)


@adapter_app.command("publish")
def adapter_publish(data: Data = None) -> None:
    """Store the packed adapters of this host's folder that the object store lacks, for engines that fetch."""
    from cli.packed_adapters import publish_adapters

    sent, total = publish_adapters(data)
    print(f"{sent} published, {total} in all")


@adapter_app.command("list")
def adapter_list(tenant: Tenant, data: Data = None) -> None:
    """List a tenant's adapters."""
    from cli import adapters

    print_rows(("MODEL", "STATE", "ACTIVE", "RANK", "SINCE", "ID"), adapters.list_adapters(data, tenant))


@adapter_app.command("show")
def adapter_show(tenant: Tenant, name: Name, data: Data = None) -> None:
    """Show an adapter's latest versions (the active one marked with a star) and its latest events."""
    from cli import adapters

    versions, events = adapters.show_adapter(data, tenant, name)
    print_rows(("VERSION", "STATE", "RANK", "DTYPE", "SINCE", "DIGEST", "WHY"), versions)
    print()
    print_rows(("WHEN", "WHAT", "DETAIL"), events)


@adapter_app.command("activate")
def adapter_activate(tenant: Tenant, name: Name, version: Version, data: Data = None) -> None:
    """Activate a version: the adapter's name serves it."""
    from cli import adapters

    print(adapters.activate_adapter(data, tenant, name, version))


@adapter_app.command("rollback")
def adapter_rollback(tenant: Tenant, name: Name, data: Data = None) -> None:
    """Activate the version that was active before."""
    from cli import adapters

    print(adapters.rollback_adapter(data, tenant, name))


@adapter_app.command("override")
def adapter_override(
    tenant: Tenant,
    name: Name,
    version: Version,
    reason: Annotated[str, typer.Option(help="The reason; recorded and visible to the tenant.")],
    data: Data = None,
) -> None:
    """Let a version pass that the calibration gate rejected, or would reject."""
    from cli import adapters

    print(adapters.override_adapter(data, tenant, name, version, reason))


@adapter_app.command("disable")
def adapter_disable(tenant: Tenant, name: Name, data: Data = None) -> None:
    """Take an adapter out of service: requests for it are rejected within a second."""
    from cli import adapters

    adapters.set_adapter_disabled(data, tenant, name, True)
    print(f"{name} is disabled")


@adapter_app.command("enable")
def adapter_enable(tenant: Tenant, name: Name, data: Data = None) -> None:
    """Put a disabled adapter back into service."""
    from cli import adapters

    adapters.set_adapter_disabled(data, tenant, name, False)
    print(f"{name} is enabled")


@adapter_app.command("delete")
def adapter_delete(tenant: Tenant, name: Name, data: Data = None) -> None:
    """Delete an adapter with all its versions, permanently."""
    from cli import adapters

    print(f"{adapters.delete_adapter(data, tenant, name)} is deleted")


@adapter_app.command("verify")
def adapter_verify(
    folder: Annotated[Path, typer.Argument(help="A folder with a model.sig, such as an exported version.")],
    public_key: Annotated[
        Path | None, typer.Option(help="The signer's public key in PEM; default: the platform's.")
    ] = None,
    data: Data = None,
) -> None:
    """Verify every file of a folder with its signature, without a running service."""
    from cli.signatures import verify_folder

    key_id, num_files = verify_folder(folder, public_key, data)
    print(f"{num_files} files are what {key_id} signed")


@adapter_app.command("check")
def adapter_check(tenant: Tenant, name: Name, version: Version, data: Data = None) -> None:
    """Compare all stored files of a version with its signature; one that differs is refused."""
    from cli.errors import CliError
    from cli.signatures import check_version

    problem = check_version(data, tenant, name, version)
    if problem is not None:
        raise CliError(f"version {version} of {name} is refused: {problem}")
    print(f"all stored files of version {version} of {name} are what was signed")


@adapter_app.command("sign")
def adapter_sign(tenant: Tenant, name: Name, version: Version, data: Data = None) -> None:
    """Sign a version as it is recorded, also one that is refused: after its files were restored."""
    from cli.errors import CliError
    from cli.signatures import sign_version

    if not sign_version(data, tenant, name, version):
        raise CliError(f"version {version} of {name} is not whole: `rootstock adapter check` says why")
    print(f"version {version} of {name} is signed")


@adapter_app.command("export")
def adapter_export(
    tenant: Tenant,
    name: Name,
    version: Version,
    folder: Annotated[Path, typer.Argument(help="The folder to make.")],
    data: Data = None,
) -> None:
    """Write all files of a signed version, with its model.sig, into a folder."""
    from cli.signatures import export_version

    export_version(data, tenant, name, version, folder)
    print(folder)


@plan_app.command("list")
def plan_list(data: Data = None) -> None:
    """List the plans."""
    from cli import plans

    print_rows(PLAN_HEADER, plans.list_plans(data))


@plan_app.command("create")
def plan_create(
    name: Annotated[str, typer.Argument(help="The plan's name, such as large.")],
    max_adapters: MaxAdapters = None,
    max_file_bytes: MaxFileBytes = None,
    pinned_adapters: PinnedAdapters = None,
    gate: Gate = None,
    term: Term = None,
    limit: PlanLimits = None,
    monthly_fee: MonthlyFee = None,
    included_usage: IncludedUsage = None,
    batch_price_percent: BatchPrice = None,
    response_days: ResponseDays = None,
    data: Data = None,
) -> None:
    """Create a plan from the standard plan and these options, and print its id."""
    from cli import plans

    wanted = plans.changes(
        *(max_adapters, max_file_bytes, pinned_adapters, gate or (), term or (), limit or ()),
        monthly_fee=monthly_fee,
        included_usage=included_usage,
        batch_price_percent=batch_price_percent,
        response_days=response_days,
    )
    print(plans.create_plan(data, name, wanted))


@plan_app.command("set")
def plan_set(
    name: Annotated[str, typer.Argument(help="The plan's name.")],
    max_adapters: MaxAdapters = None,
    max_file_bytes: MaxFileBytes = None,
    pinned_adapters: PinnedAdapters = None,
    gate: Gate = None,
    term: Term = None,
    limit: PlanLimits = None,
    monthly_fee: MonthlyFee = None,
    included_usage: IncludedUsage = None,
    batch_price_percent: BatchPrice = None,
    response_days: ResponseDays = None,
    data: Data = None,
) -> None:
    """Change a plan for all tenants on it; the change applies within a second."""
    from cli import plans

    wanted = plans.changes(
        *(max_adapters, max_file_bytes, pinned_adapters, gate or (), term or (), limit or ()),
        monthly_fee=monthly_fee,
        included_usage=included_usage,
        batch_price_percent=batch_price_percent,
        response_days=response_days,
    )
    print_rows(PLAN_HEADER, [plans.set_plan(data, name, wanted)])


@plan_app.command("terms")
def plan_terms(
    name: Annotated[str, typer.Argument(help="The plan's name.")],
    data: Data = None,
) -> None:
    """Show a plan's terms for each service tier. Shares are in parts per million (ppm)."""
    from cli import plans

    print_rows(TERMS_HEADER, plans.list_terms(data, name))
