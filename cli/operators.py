"""`rootstock operator`: who runs the service, and signs in to its console to see every tenant.

Owns one call to the services per command. Everything heavy is imported by the command that needs it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cli.printing import Data, print_rows

if TYPE_CHECKING:
    from cli.operator import Services
    from tenants.operators.service import OperatorAccounts

operator_app = typer.Typer(
    help="Operators: people who run the service, and see every tenant in the console.", no_args_is_help=True
)

Email = Annotated[str, typer.Argument(help="What they sign in with.")]


@operator_app.command("add")
def operator_add(
    email: Email,
    name: Annotated[str, typer.Option(help="What they are called.")] = "",
    read_only: Annotated[bool, typer.Option("--read-only", help="Sees everything, changes nothing.")] = False,
    data: Data = None,
) -> None:
    """Make an operator; the password is read from the terminal, or one line of standard input."""
    from cli.operator import call

    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\n")

    async def work(services: Services) -> str:
        made = await _operators(services).add(email, password, name=name, looks_on=read_only)
        return made.email

    print(f"{call(data, work)} signs in at /console")


@operator_app.command("list")
def operator_list(data: Data = None) -> None:
    """List the operators."""
    from cli.operator import call, minute

    async def work(services: Services) -> list[tuple[str, ...]]:
        return [
            (user.email, user.name or "-", _may(user.role), minute(user.created_at))
            for user in await _operators(services).list()
        ]

    print_rows(("EMAIL", "NAME", "MAY", "CREATED"), call(data, work))


@operator_app.command("remove")
def operator_remove(email: Email, data: Data = None) -> None:
    """Take somebody's place as an operator away: signed out at once, out of tenants' consoles too."""
    from cli.operator import call

    async def work(services: Services) -> None:
        await _operators(services).remove(email)

    call(data, work)
    print(f"{email} is no operator any more")


@operator_app.command("reset")
def operator_reset(
    email: Email,
    second_factor: Annotated[
        bool, typer.Option("--second-factor", help="Take their second factor away, too.")
    ] = False,
    data: Data = None,
) -> None:
    """Print a token, good once and for a day, by which an operator chooses another password at
    /console/reset.
    """
    from cli.accounts import reset_token
    from cli.operator import call

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
