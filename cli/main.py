"""Parses the `rootstock` command line, calls the function that does the work, and prints errors in one line.

Exit codes: 2 for incorrect usage, 1 for a failure, 0 otherwise. Commands import what they need when they run:
`rootstock --help` loads neither torch nor SQLAlchemy.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cli.account_commands import audit_app, key_app, project_app, tenant_app, user_app
from cli.adapter_commands import adapter_app, plan_app
from cli.backup.command import backup_app, restore
from cli.base_commands import base_app
from cli.billing import billing_app
from cli.capacity.command import capacity_app
from cli.checks.process import Process
from cli.errors import CliError, UsageError
from cli.evidence import evidence_app
from cli.invoices import credit_app, invoice_app
from cli.ledger import ledger_app
from cli.operator_commands import operator_app
from cli.prices import price_app
from cli.printing import Data, print_rows
from cli.reconcile_command import books_app
from cli.rotate_commands import rotate_app
from cli.sla import sla_app
from cli.stripe import stripe_app

app = typer.Typer(
    name="rootstock",
    help="Serve hundreds of tenants' LoRA adapters on one base model, sold by the token.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(tenant_app, name="tenant")
app.add_typer(project_app, name="project")
app.add_typer(key_app, name="key")
app.add_typer(adapter_app, name="adapter")
app.add_typer(base_app, name="base")
app.add_typer(backup_app, name="backup")
app.command()(restore)
app.add_typer(rotate_app, name="rotate")
app.add_typer(evidence_app, name="evidence")
app.add_typer(plan_app, name="plan")
app.add_typer(price_app, name="price")
billing_app.add_typer(ledger_app)
billing_app.add_typer(books_app)
billing_app.add_typer(stripe_app, name="stripe")
app.add_typer(billing_app, name="billing")
app.add_typer(invoice_app, name="invoice")
app.add_typer(credit_app, name="credit")
app.add_typer(user_app, name="user")
app.add_typer(operator_app, name="operator")
app.add_typer(audit_app, name="audit")
app.add_typer(sla_app, name="sla")
app.add_typer(capacity_app)


@app.command()
def up(
    data: Annotated[Path, typer.Option(help="Directory for databases, secrets, adapters and logs.")] = Path(
        "var/rootstock"
    ),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = 8000,
    base: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]DIR",
            help="Directory of a base model in Hugging Face layout, and the name it is served under. "
            "Repeatable; the first is the default.",
        ),
    ] = None,
    base_name: Annotated[
        str | None,
        typer.Option(help="Name the only base model is served under. Default: its directory's name."),
    ] = None,
    quantization: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FORMAT",
            help="Weight format, of all base models or of one: none or int8 on a CPU; none, fp8 or int4 on a "
            "GPU. Repeatable.",
        ),
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]DIR",
            help="Directory of a draft adapter of a base model, PEFT with a drafter.json: it guesses tokens, "
            "of which engines verify several at a time. Repeatable, once for each base.",
        ),
    ] = None,
    tensor_parallel: Annotated[
        int, typer.Option(min=1, max=8, help="GPUs, or processes on a CPU, that share each step.")
    ] = 1,
    replicas: Annotated[
        int, typer.Option(min=1, max=64, help="Engines of each base model; on GPUs, each has its own.")
    ] = 1,
    prefill_replicas: Annotated[
        int, typer.Option(min=0, max=64, help="More engines, which compute long prompts for the others.")
    ] = 0,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:PORT]",
            help="Run engines on a Ray cluster: on a head started here, or on the one at this address.",
        ),
    ] = None,
    replicas_min: Annotated[
        int | None, typer.Option(min=1, max=64, help="With --ray: the fewest engines. Default: --replicas.")
    ] = None,
    replicas_max: Annotated[
        int | None, typer.Option(min=1, max=64, help="With --ray: the most engines. Default: the fewest.")
    ] = None,
    api_processes: Annotated[
        int, typer.Option(min=1, max=64, help="API processes that share the address.")
    ] = 1,
    demo: Annotated[
        bool, typer.Option("--demo", help="Create two tenants with keys and sapling's adapters.")
    ] = False,
    showcase: Annotated[
        bool, typer.Option("--showcase", help="With --demo: run the showcase once everything serves.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="With --showcase: stop afterwards.")] = False,
) -> None:
    """Run everything on this machine: PostgreSQL, Redis, engines, API, workers.

    ROOTSTOCK_DB_URL and ROOTSTOCK_REDIS_URL name servers to use instead of private ones.
    """
    from cli.up import run_up
    from cli.up_options import UpOptions

    if once and not showcase:
        raise UsageError("--once stops after the showcase: pass --showcase too")
    if showcase and not demo:
        raise UsageError("--showcase needs the demo: pass --demo too")
    options = UpOptions(
        data=data,
        host=host,
        port=port,
        bases=base or [],
        base_name=base_name,
        quantizations=quantization or [],
        drafters=drafter or [],
        tensor_parallel=tensor_parallel,
        replicas=replicas,
        prefill_replicas=prefill_replicas,
        api_processes=api_processes,
        ray=ray,
        replicas_min=replicas_min,
        replicas_max=replicas_max,
        demo=demo,
        showcase=showcase,
        once=once,
    )
    raise typer.Exit(run_up(options))


@app.command()
def join(
    address: Annotated[str, typer.Argument(help="HOST:PORT of the Ray head.")],
    token: Annotated[Path, typer.Option(help="File with the cluster's token: ray.token of `rootstock up`.")],
    data: Annotated[Path, typer.Option(help="Directory of this host's engines.")] = Path("var/rootstock"),
    cpus: Annotated[
        int | None, typer.Option(min=0, help="Cores that this host offers. Default: all.")
    ] = None,
) -> None:
    """Offer this host's devices to the engines of a service that runs elsewhere with --ray."""
    from cli.cluster.join import run_join

    raise typer.Exit(run_join(address, data, token, cpus))


@app.command("client-key")
def client_key(
    file: Annotated[Path, typer.Argument(help="File of the secret key; made unless it exists.")],
) -> None:
    """Make the key of engines' clients, and print its public half, for ROOTSTOCK_CLUSTER_CLIENT_KEYS."""
    from cli.client_key import make_client_key, public_keys

    make_client_key(file)
    print(public_keys(file))


@app.command("place-engines")
def place_engines() -> None:
    """Keep a cluster's engines running on Ray (settings: ROOTSTOCK_RAY_*, ROOTSTOCK_ENGINE_*, ...)."""
    from cli.cluster.controller import main

    raise typer.Exit(main())


@app.command("serve-api")
def serve_api() -> None:
    """Run the API process (settings: ROOTSTOCK_API_*, ROOTSTOCK_DB_*, ...)."""
    from cli.processes import serve_api

    serve_api()


@app.command("serve-engine")
def serve_engine() -> None:
    """Run the engine of one device (settings: ROOTSTOCK_ENGINE_*, ROOTSTOCK_DEVICE_*)."""
    from cli.processes import serve_engine

    serve_engine()


@app.command()
def work(
    queues: Annotated[
        str | None,
        typer.Option(
            help="rootstock (metering, schedule), rootstock.jobs (adapter jobs). Default: from the settings."
        ),
    ] = None,
    beat: Annotated[
        bool | None,
        typer.Option("--beat/--no-beat", help="Also send the periodic tasks. Default: from the settings."),
    ] = None,
    nice: Annotated[
        int | None,
        typer.Option(min=0, max=19, help="CPU priority, 19 is lowest. Default: from the settings."),
    ] = None,
) -> None:
    """Run a background worker (settings: ROOTSTOCK_WORKER_*, ROOTSTOCK_JOBS_*, ROOTSTOCK_DB_*, ...)."""
    from cli.processes import work

    work(queues, beat, nice)


@app.command()
def migrate(data: Data = None) -> None:
    """Migrate the database to this version's schema."""
    from cli.service_access import migrate

    print(f"the schema is at {migrate(data)}")


@app.command()
def check(
    process: Annotated[
        list[Process] | None,
        typer.Option(help="Check only what this process needs; repeatable. Default: all processes."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    data: Data = None,
) -> None:
    """Report missing settings and servers, and features that are off; exit 1 if anything required is
    missing.
    """
    from cli.check import check

    raise typer.Exit(check(data, set(process or Process), as_json=as_json))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="The benchmark's name; lists them if omitted.")] = None,
) -> None:
    """Run a benchmark: `rootstock bench serving --out F`."""
    from cli.bench import list_benchmarks, run_benchmark

    if name is None or name in ("-h", "--help"):
        print_rows(("BENCHMARK", "MEASURES"), list_benchmarks())
        return
    raise typer.Exit(run_benchmark(name, context.args))


@app.command()
def version(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Show the installed release, the database schemas it works with, and its commit."""
    from cli.version import installed_version

    fields = asdict(installed_version())
    if as_json:
        print(json.dumps(fields))
        return
    for name, value in fields.items():
        print(f"{name.replace('_', '-'):15}{value or 'unknown'}")


def complete_options(arguments: list[str]) -> list[str]:
    """Returns the command line with the value that --ray has when none is given, which Typer cannot say."""
    completed = []
    for argument, following in zip(arguments, [*arguments[1:], "-"], strict=True):
        completed.append(argument)
        if argument == "--ray" and following.startswith("-"):
            completed.append("local")
    return completed


def main() -> None:
    """Runs the console script. Exits; never returns."""
    try:
        app(complete_options(sys.argv[1:]), prog_name="rootstock")
    except CliError as error:
        print(f"rootstock: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of the output has closed it, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
