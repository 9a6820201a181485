"""Defines `rootstock operator`: accounts of the people who run the service and see every tenant in the
console.

Each command makes one call to the services; heavy modules are imported by the command that needs them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cli.printing import Data, print_rows

if TYPE_CHECKING:
    from cli.service_access import Services
    from tenants.operators.service import OperatorAccounts

operator_app = typer.Typer(
    help="Operators: people who run the service and see every tenant in the console.", no_args_is_help=True
)

Email = Annotated[str, typer.Argument(help="The operator's email address.")]


@operator_app.command("add")
def operator_add(
    email: Email,
    name: Annotated[str, typer.Option(help="The operator's name.")] = "",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="May see everything, but change nothing.")
    ] = False,
    data: Data = None,
) -> None:
    """Add an operator. Reads the password from the terminal, or one line from standard input."""
    from cli.service_access import call

    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\n")

    async def work(services: Services) -> str:
        made = await _operators(services).add(email, password, name=name, looks_on=read_only)
        return made.email

    print(f"{call(data, work)} can sign in at /console")


@operator_app.command("list")
def operator_list(data: Data = None) -> None:
    """List the operators."""
    from cli.service_access import call, minute

    async def work(services: Services) -> list[tuple[str, ...]]:
        return [
            (user.email, user.name or "-", _may(user.role), minute(user.created_at))
            for user in await _operators(services).list()
        ]

    print_rows(("EMAIL", "NAME", "MAY", "CREATED"), call(data, work))


@operator_app.command("remove")
def operator_remove(email: Email, data: Data = None) -> None:
    """Remove an operator: signed out at once, also of tenants' consoles."""
    from cli.service_access import call

    async def work(services: Services) -> None:
        await _operators(services).remove(email)

    call(data, work)
    print(f"{email} is no longer an operator")


@operator_app.command("reset")
def operator_reset(
    email: Email,
    second_factor: Annotated[
        bool, typer.Option("--second-factor", help="Also remove the operator's second factor.")
    ] = False,
    data: Data = None,
) -> None:
    """Print a token to set a new password at /console/reset. It works once, within a day."""
    from cli.accounts import reset_token
    from cli.service_access import call

    async def work(services: Services) -> str:
        from tenants.models import OPERATOR_TENANT

        user = await _operators(services).find(email)
        return await reset_token(services, OPERATOR_TENANT, user.id, second_factor)

    print(call(data, work))


def _operators(services: Services) -> OperatorAccounts:
    from tenants.operators.service import OperatorAccounts

    return OperatorAccounts(services.database, services.redis)


def _may(role: str) -> str:
    return "change" if role == "owner" else "look"
