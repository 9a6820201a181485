"""Defines `rootstock base`: publishing base models in the object store, and fetching them from there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.printing import Data

base_app = typer.Typer(help="Base models in the object store.", no_args_is_help=True)


@base_app.command("publish")
def publish(
    path: Annotated[Path, typer.Argument(help="Directory of the base model in Hugging Face layout.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Also read what is stored already, and replace what is damaged.")
    ] = False,
    data: Data = None,
) -> None:
    """Store a base model under its digest, and print the digest; what is stored already is not sent again."""
    from cli.bases import publish_base

    print(publish_base(data, path, verify=verify))


@base_app.command("fetch")
def fetch(
    digest: Annotated[str, typer.Argument(help="What `rootstock base publish` printed.")],
    into: Annotated[Path, typer.Option(help="Directory of fetched bases.")],
    data: Data = None,
) -> None:
    """Fetch a base model to this host ahead of its engines, and print its path."""
    from cli.bases import fetch_base

    print(fetch_base(data, digest, into))


@base_app.command("publish-drafter")
def publish_drafter(
    base: Annotated[Path, typer.Argument(help="Directory of the base model.")],
    path: Annotated[Path, typer.Argument(help="Directory of its draft adapter: PEFT with a drafter.json.")],
    data: Data = None,
) -> None:
    """Pack and store a base model's draft adapter for engines that fetch packed adapters, and print what
    ROOTSTOCK_ENGINE_PACKED_DRAFTER is set to there.
    """
    from cli.draft_adapters import publish_drafter as publish

    print(publish(data, base, path))
