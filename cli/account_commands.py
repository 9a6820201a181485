"""The commands on tenants, their projects, keys and users, and on the audit log. Owns their names, options
and help.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from cli.printing import Data, print_rows

tenant_app = typer.Typer(
    help="Tenants: the customers, each alone with its adapters, keys and usage.", no_args_is_help=True
)
project_app = typer.Typer(
    help="Projects of a tenant: keys, limits and usage kept apart.", no_args_is_help=True
)
key_app = typer.Typer(help="API keys of a tenant.", no_args_is_help=True)
user_app = typer.Typer(help="People who sign in to a tenant's console.", no_args_is_help=True)
audit_app = typer.Typer(help="Who changed what: the audit log.", no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(help="Tenant's name.")]
Project = Annotated[str, typer.Argument(help="The project's name or id.")]
KeyId = Annotated[str, typer.Argument(help="The key's id, from `rootstock key list`.")]
Email = Annotated[str, typer.Argument(help="What they sign in with.")]


class KeyKind(StrEnum):
    """What a key may do: ask models, or run the account."""

    INFERENCE = "inference"
    ADMIN = "admin"


class RoleName(StrEnum):
    """What a user may do."""

    OWNER = "owner"
    ADMIN = "admin"
    DEVELOPER = "developer"
    BILLING = "billing"
    VIEWER = "viewer"


@tenant_app.command("create")
def tenant_create(name: Annotated[str, typer.Argument(help="Such as acme.")], data: Data = None) -> None:
    """Create a tenant and print its id."""
    from cli import accounts

    print(accounts.create_tenant(data, name))


@tenant_app.command("list")
def tenant_list(data: Data = None) -> None:
    """List the tenants."""
    from cli import accounts

    print_rows(("NAME", "ID", "CREATED", "STATE"), accounts.list_tenants(data))


@tenant_app.command("disable")
def tenant_disable(tenant: Tenant, data: Data = None) -> None:
    """Shut all of a tenant's keys and users out, within a second."""
    from cli import accounts

    accounts.set_tenant_disabled(data, tenant, True)
    print(f"{tenant} is disabled")


@tenant_app.command("enable")
def tenant_enable(tenant: Tenant, data: Data = None) -> None:
    """Let a tenant that was disabled in again."""
    from cli import accounts

    accounts.set_tenant_disabled(data, tenant, False)
    print(f"{tenant} is enabled")


@tenant_app.command("set-plan")
def tenant_set_plan(
    tenant: Tenant,
    plan: Annotated[str, typer.Argument(help="The plan's name.")],
    data: Data = None,
) -> None:
    """Put a tenant on a plan, within a second."""
    from cli import plans

    plans.set_tenant_plan(data, tenant, plan)
    print(f"{tenant} is on the plan {plan}")


@project_app.command("create")
def project_create(
    tenant: Tenant, name: Annotated[str, typer.Argument(help="What it is called.")], data: Data = None
) -> None:
    """Create a project and print its id."""
    from cli import accounts

    print(accounts.create_project(data, tenant, name))


@project_app.command("list")
def project_list(tenant: Tenant, data: Data = None) -> None:
    """List a tenant's projects."""
    from cli import accounts

    print_rows(("NAME", "ID", "CREATED", "STATE"), accounts.list_projects(data, tenant))


@project_app.command("archive")
def project_archive(tenant: Tenant, project: Project, data: Data = None) -> None:
    """End a project: its keys are refused everywhere within a second."""
    from cli import accounts

    accounts.archive_project(data, tenant, project)
    print(f"{project} is archived")


@key_app.command("create")
def key_create(
    tenant: Tenant,
    kind: Annotated[
        KeyKind, typer.Option(help="inference: asks models. admin: runs the account.")
    ] = KeyKind.INFERENCE,
    name: Annotated[str, typer.Option(help="What it is for.")] = "default",
    project: Annotated[
        str | None, typer.Option(help="Name or id of its project; else the tenant's default one.")
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option(help="What it may do, again for each; else all its kind may.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model it may ask for (`base:*`: all adapters), again for each; else all."),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(help="Where it may be used from, as 10.0.0.0/8, again for each; else anywhere."),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(help="Web origin whose pages may use it, as https://app.example, again for each."),
    ] = None,
    days: Annotated[float | None, typer.Option(min=0, help="Days it lives; else until revoked.")] = None,
    data: Data = None,
) -> None:
    """Create a key and print it: only its hash is kept, so this is the one time it is shown."""
    from cli import accounts

    print(
        accounts.create_key(
            data,
            tenant,
            kind.value,
            name,
            project=project,
            scopes=scope or (),
            models=model or (),
            networks=network or (),
            origins=origin or (),
            days=days,
        )
    )


@key_app.command("rotate")
def key_rotate(
    tenant: Tenant,
    key_id: KeyId,
    grace: Annotated[float, typer.Option(min=0, help="Hours the old key works on.")] = 24,
    data: Data = None,
) -> None:
    """Make another key in a key's place and print it, this one time."""
    from cli import accounts

    print(accounts.rotate_key(data, tenant, key_id, grace))


@key_app.command("revoke")
def key_revoke(tenant: Tenant, key_id: KeyId, data: Data = None) -> None:
    """Revoke a key: refused everywhere within a second."""
    from cli import accounts

    accounts.revoke_key(data, tenant, key_id)
    print(f"{key_id} is revoked")


@key_app.command("list")
def key_list(tenant: Tenant, data: Data = None) -> None:
    """List a tenant's keys; the secrets themselves cannot be shown again."""
    from cli import accounts

    print_rows(
        ("ID", "NAME", "KIND", "PROJECT", "PREFIX", "CREATED", "LAST USED", "EXPIRES", "STATE"),
        accounts.list_keys(data, tenant),
    )


@user_app.command("create")
def user_create(
    tenant: Tenant,
    email: Email,
    role: Annotated[RoleName, typer.Option(help="What they may do.")] = RoleName.OWNER,
    data: Data = None,
) -> None:
    """Create a console user; the password is read from the terminal, or one line of standard input."""
    from cli import accounts

    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    accounts.create_user(data, tenant, email, password, role.value)
    print(f"{email} can sign in")


@user_app.command("list")
def user_list(tenant: Tenant, data: Data = None) -> None:
    """List a tenant's users."""
    from cli import accounts

    print_rows(("EMAIL", "ID", "ROLE", "ADDED"), accounts.list_users(data, tenant))


@user_app.command("set-role")
def user_set_role(
    tenant: Tenant,
    email: Email,
    role: Annotated[RoleName, typer.Argument(help="What they may do.")],
    data: Data = None,
) -> None:
    """Let a user do more, or less."""
    from cli import accounts

    accounts.set_user_role(data, tenant, email, role.value)
    print(f"{email} is {role.value}")


@user_app.command("reset")
def user_reset(
    tenant: Tenant,
    email: Email,
    second_factor: Annotated[
        bool, typer.Option("--second-factor", help="Take their second factor away, too.")
    ] = False,
    data: Data = None,
) -> None:
    """Print what a user chooses another password by, on the console's page /reset: good once, for a day."""
    from cli import accounts

    print(accounts.reset_user(data, tenant, email, second_factor=second_factor))


@user_app.command("remove")
def user_remove(tenant: Tenant, email: Email, data: Data = None) -> None:
    """Take a user out of a tenant, and revoke their keys."""
    from cli import accounts

    accounts.remove_user(data, tenant, email)
    print(f"{email} is removed")


@audit_app.command("list")
def audit_list(
    tenant: Annotated[
        str | None, typer.Argument(help="Tenant's name; else what is no tenant's, such as plans.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, from the newest.")] = 50,
    data: Data = None,
) -> None:
    """List the newest entries of an audit log, the newest first."""
    from cli import accounts

    print_rows(("SEQ", "AT", "TYPE", "WHO", "WHAT"), accounts.list_audit(data, tenant, limit))


@audit_app.command("verify")
def audit_verify(
    tenant: Annotated[str | None, typer.Argument(help="Tenant's name; else all of them.")] = None,
    data: Data = None,
) -> None:
    """Prove that no entry was changed, dropped or put in: exits with 1 where one was."""
    from cli import accounts

    count = accounts.verify_audit(data, tenant)
    print(f"{count} chain{'' if count == 1 else 's'} whole")
