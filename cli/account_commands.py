"""Defines the commands on tenants, projects, API keys, users and the audit log: names, options and help."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from cli.errors import UsageError
from cli.printing import Data, print_rows

tenant_app = typer.Typer(
    help="Tenants: customers, each with its own adapters, keys and usage.", no_args_is_help=True
)
project_app = typer.Typer(help="Projects of a tenant: separate keys, limits and usage.", no_args_is_help=True)
key_app = typer.Typer(help="API keys of a tenant.", no_args_is_help=True)
user_app = typer.Typer(help="People who sign in to a tenant's console.", no_args_is_help=True)
audit_app = typer.Typer(help="The audit log: changes, and who made them.", no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(help="Tenant's name.")]
Project = Annotated[str, typer.Argument(help="The project's name or id.")]
KeyId = Annotated[str, typer.Argument(help="The key's id, from `rootstock key list`.")]
Email = Annotated[str, typer.Argument(help="The user's email address.")]


class KeyKind(StrEnum):
    """What a key may do: send requests to models, or administer the account."""

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
def tenant_create(
    name: Annotated[str, typer.Argument(help="The tenant's name, such as acme.")], data: Data = None
) -> None:
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
    """Suspend a tenant: its keys and users are rejected within a second."""
    from cli import accounts

    accounts.set_tenant_disabled(data, tenant, True)
    print(f"{tenant} is disabled")


@tenant_app.command("enable")
def tenant_enable(tenant: Tenant, data: Data = None) -> None:
    """Reinstate a disabled tenant."""
    from cli import accounts

    accounts.set_tenant_disabled(data, tenant, False)
    print(f"{tenant} is enabled")


@tenant_app.command("delete")
def tenant_delete(
    tenant: Tenant,
    confirm: Annotated[str, typer.Option(help="The tenant's name once more: this cannot be undone.")],
    data: Data = None,
) -> None:
    """Delete a disabled tenant: everything but the books, the audit log and the certificate of it."""
    from cli import accounts

    if confirm != tenant:
        raise UsageError(f"--confirm {confirm!r} is not the tenant's name: nothing is deleted")
    owner, deletion = accounts.delete_tenant(data, tenant)
    print(f"the deletion {deletion} of {tenant} ({owner}) has begun; workers carry it out and certify it")


@tenant_app.command("set-plan")
def tenant_set_plan(
    tenant: Tenant,
    plan: Annotated[str, typer.Argument(help="The plan's name.")],
    data: Data = None,
) -> None:
    """Assign a plan to a tenant; it applies within a second."""
    from cli import plans

    plans.set_tenant_plan(data, tenant, plan)
    print(f"{tenant} is on the plan {plan}")


@project_app.command("create")
def project_create(
    tenant: Tenant, name: Annotated[str, typer.Argument(help="The project's name.")], data: Data = None
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
    """Archive a project: its keys are rejected within a second."""
    from cli import accounts

    accounts.archive_project(data, tenant, project)
    print(f"{project} is archived")


@key_app.command("create")
def key_create(
    tenant: Tenant,
    kind: Annotated[
        KeyKind, typer.Option(help="inference: sends requests to models. admin: administers the account.")
    ] = KeyKind.INFERENCE,
    name: Annotated[str, typer.Option(help="A name to recognise the key by.")] = "default",
    project: Annotated[
        str | None,
        typer.Option(help="Name or id of the key's project. Default: the tenant's default project."),
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option(help="A permission of the key; repeatable. Default: all of its kind.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model the key may use (`base:*`: all adapters); repeatable. Default: all."),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(help="A network the key may be used from, as 10.0.0.0/8; repeatable. Default: any."),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(help="A web origin whose pages may use the key, as https://app.example; repeatable."),
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0, help="Days until the key expires. Default: never.")
    ] = None,
    data: Data = None,
) -> None:
    """Create a key and print it. Only its hash is stored, so it cannot be shown again."""
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
    grace: Annotated[float, typer.Option(min=0, help="Hours the old key keeps working.")] = 24,
    data: Data = None,
) -> None:
    """Replace a key by a new one and print the new key; it cannot be shown again."""
    from cli import accounts

    print(accounts.rotate_key(data, tenant, key_id, grace))


@key_app.command("revoke")
def key_revoke(tenant: Tenant, key_id: KeyId, data: Data = None) -> None:
    """Revoke a key: it is rejected within a second."""
    from cli import accounts

    accounts.revoke_key(data, tenant, key_id)
    print(f"{key_id} is revoked")


@key_app.command("list")
def key_list(tenant: Tenant, data: Data = None) -> None:
    """List a tenant's keys. The keys themselves cannot be shown again."""
    from cli import accounts

    print_rows(
        ("ID", "NAME", "KIND", "PROJECT", "PREFIX", "CREATED", "LAST USED", "EXPIRES", "STATE"),
        accounts.list_keys(data, tenant),
    )


@user_app.command("create")
def user_create(
    tenant: Tenant,
    email: Email,
    role: Annotated[RoleName, typer.Option(help="What the user may do.")] = RoleName.OWNER,
    data: Data = None,
) -> None:
    """Create a console user. Reads the password from the terminal, or one line from standard input."""
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
    role: Annotated[RoleName, typer.Argument(help="What the user may do.")],
    data: Data = None,
) -> None:
    """Change a user's role."""
    from cli import accounts

    accounts.set_user_role(data, tenant, email, role.value)
    print(f"{email} is {role.value}")


@user_app.command("reset")
def user_reset(
    tenant: Tenant,
    email: Email,
    second_factor: Annotated[
        bool, typer.Option("--second-factor", help="Also remove the user's second factor.")
    ] = False,
    data: Data = None,
) -> None:
    """Print a token to set a new password on the console page /reset. It works once, within a day."""
    from cli import accounts

    print(accounts.reset_user(data, tenant, email, second_factor=second_factor))


@user_app.command("remove")
def user_remove(tenant: Tenant, email: Email, data: Data = None) -> None:
    """Remove a user from a tenant, and revoke the user's keys."""
    from cli import accounts

    accounts.remove_user(data, tenant, email)
    print(f"{email} is removed")


@audit_app.command("list")
def audit_list(
    tenant: Annotated[
        str | None,
        typer.Argument(help="Tenant's name. Default: entries of no tenant, such as changes to plans."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many entries, from the newest.")] = 50,
    data: Data = None,
) -> None:
    """List an audit log's newest entries, newest first."""
    from cli import accounts

    print_rows(("SEQ", "AT", "TYPE", "WHO", "WHAT"), accounts.list_audit(data, tenant, limit))


@audit_app.command("verify")
def audit_verify(
    tenant: Annotated[str | None, typer.Argument(help="Tenant's name. Default: all tenants.")] = None,
    data: Data = None,
) -> None:
    """Verify that no entry was changed, removed or inserted; exit 1 if one was."""
    from cli import accounts

    count = accounts.verify_audit(data, tenant)
    print(f"{count} audit log{'' if count == 1 else 's'} verified")
