"""Defines `rootstock rotate`: exchanges secrets with two of them valid at a time.

Heavy modules are imported by the commands.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cli.errors import CliError
from cli.printing import Data, print_rows

if TYPE_CHECKING:
    from cli.service_access import Services
    from tenants.rotation.resealing import Resealed
    from tenants.rotation.service import RotationReport

rotate_app = typer.Typer(help="Rotate secrets with two valid at a time.", no_args_is_help=True)


@rotate_app.command("status")
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False, data: Data = None
) -> None:
    """Count what was made with which key secret, and name API keys that still need the old one."""
    from cli import rotation
    from cli.service_access import call

    async def work(services: Services) -> RotationReport:
        return await rotation.rotation_of(services).report()

    report = call(data, work)
    if as_json:
        print(json.dumps(rotation.as_json(report), indent=2))
        return
    print_rows(("WHAT", "CURRENT", "ANOTHER", "NOT KNOWN"), rotation.rows_of(report))
    if report.is_rotating and report.keys:
        print("\nAPI keys not used since, the longest unused first:")
        print_rows(("TENANT", "KEY", "PREFIX"), report.keys)
    print(f"\n{rotation.verdict(report)}")


@rotate_app.command("key-secret")
def key_secret(data: Data = None) -> None:
    """Begin to rotate the key secret: in the directory of a running `rootstock up`; else print the steps."""
    from cli import rotation
    from cli.service_access import call

    if data is None:
        print(rotation.GUIDE)
        return
    directory = data

    async def work(services: Services) -> None:
        await rotation.begin_in(services, directory)

    call(data, work)
    print(
        f"{data} has a new key secret, and the old one is accepted from the next start on. Restart "
        f"`rootstock up`, then run `rootstock rotate reseal --data {data}`."
    )


@rotate_app.command("reseal")
def reseal(
    batch_size: Annotated[int, typer.Option(min=1, max=10_000, help="Rows of a transaction.")] = 200,
    data: Data = None,
) -> None:
    """Seal stored values again under the new key secret. Interrupt it at will: the next run continues."""
    from cli import rotation
    from cli.service_access import call

    def progress(what: str, num: int) -> None:
        print(f"{what}: {num}", file=sys.stderr)

    async def work(services: Services) -> list[Resealed]:
        return await rotation.reseal(services, progress, batch_size)

    results = call(data, work)
    rows = [(one.what, str(one.num_resealed), str(one.num_unreadable)) for one in results]
    print_rows(("WHAT", "RESEALED", "UNREADABLE"), rows)
    unreadable = [f"{one.what}: {name}" for one in results for name in one.unreadable]
    if unreadable:
        raise CliError(
            f"{sum(one.num_unreadable for one in results)} values are sealed under neither secret, and stay "
            f"as they are: {'; '.join(unreadable[:10])}"
        )


@rotate_app.command("finish")
def finish(
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Also if keys and values are lost with the old secret.")
    ] = False,
    data: Data = None,
) -> None:
    """End the rotation of the key secret, once nothing needs the old one, and record it."""
    from cli import rotation
    from cli.service_access import PREVIOUS_KEY_SECRET, call

    async def work(services: Services) -> int:
        return await rotation.finish(services, data, loses=anyway)

    num_lost = call(data, work)
    if num_lost:
        print(f"{num_lost} credentials and values are lost with the old secret")
    where = f"unset {PREVIOUS_KEY_SECRET} everywhere" if data is None else f"{data} has forgotten it"
    print(f"The old key secret may go: {where}, and restart the processes.")


@rotate_app.command("client-key")
def client_key(
    step: Annotated[Literal["add", "switch", "finish"], typer.Argument(help="In this order.")],
    file: Annotated[Path, typer.Argument(help="The file of the engines' clients, or of prefill engines.")],
) -> None:
    """Rotate a key file of encrypted connections by one step; prints the public keys to accept.

    `add` a key that is accepted, give engines both and restart them; `switch` to it, and restart the clients;
    `finish` removes the old one.
    """
    from cli.client_key import add_key, drop_key, switch_key

    steps = {"add": add_key, "switch": switch_key, "finish": drop_key}
    print(steps[step](file))


@rotate_app.command("signing-key")
def signing_key(
    step: Annotated[
        Literal["make", "show", "add", "switch", "finish"],
        typer.Argument(help="The last three in this order."),
    ],
    file: Annotated[Path | None, typer.Argument(help="The key file; default: that of --data.")] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Finish although versions are signed with the old key.")
    ] = False,
    data: Data = None,
) -> None:
    """Make or rotate the key that adapters are signed with; prints the public keys to accept.

    `add` a key that is accepted, and give engines and API processes both public keys; `switch` to it, and
    restart the workers, which sign all versions anew; `finish` removes the old one and records the rotation.
    """
    from cli import signing_key as keys

    path = file if file is not None else None if data is None else data / keys.FILE_NAME
    if path is None:
        raise CliError("name the key file, or the directory of `rootstock up` with --data")
    if step == "finish":
        _finish_signing_key(path, data, anyway)
    steps = {
        "make": keys.make_key,
        "show": keys.public_keys,
        "add": keys.add_key,
        "switch": keys.switch_key,
        "finish": keys.drop_key,
    }
    print(steps[step](path).setting)


def _finish_signing_key(path: Path, data: Path | None, anyway: bool) -> None:
    """Records the end of the rotation. Raises `CliError` while versions need the old key."""
    from cli import rotation
    from cli.service_access import call
    from cli.signatures import count_by_key
    from cli.signing_key import public_keys

    current, *others = public_keys(path)
    waiting = sum(num for key_id, num in count_by_key(data).items() if key_id in {key.id for key in others})
    if waiting and not anyway:
        raise CliError(
            f"{waiting} versions are signed with the old key: workers sign them anew within minutes of their "
            "restart; or give them up with --anyway"
        )

    async def work(services: Services) -> None:
        details = {"key_id": current.id, "num_lost": waiting}
        await rotation.rotation_of(services).record("rotated", "signing-key", details)

    if others:
        call(data, work)


@rotate_app.command("record")
def record(
    secret: Annotated[str, typer.Argument(help="Which one, such as smtp-password.")],
    note: Annotated[str, typer.Option(help="Why, or by whom. Never the secret.")] = "",
    data: Data = None,
) -> None:
    """Record in the service's audit log that a secret was rotated elsewhere."""
    from cli import rotation
    from cli.service_access import call

    async def work(services: Services) -> str:
        details = {"note": note} if note else {}
        entry = await rotation.rotation_of(services).record("rotated", secret, details)
        return f"{entry.at:%Y-%m-%d %H:%M:%S} UTC"

    print(f"recorded: {secret} was rotated, {call(data, work)}")
