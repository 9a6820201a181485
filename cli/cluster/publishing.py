"""Publishes bases of `rootstock up --ray` and their draft adapters, once for the same files and store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from adapters.published_artifacts.publishing import published_key
from adapters.published_bases.manifest import manifest_key
from cli.children import run_child
from cli.datadir import read_json, write_private_json
from cli.programs import LocalBase
from cli.service_access import object_store, plain_errors


async def published_bases(
    folder: Path, bases: Sequence[LocalBase], environment: Mapping[str, str]
) -> dict[str, str]:
    """Returns the digests of the bases in the object store, by name; publishes those that are not there.
    `folder` remembers them. ROOTSTOCK_BASE_DIGEST is the first one's, if it is set.

    Raises `CliError`.
    """
    digests = {}
    for number, base in enumerate(bases):
        given = environment.get("ROOTSTOCK_BASE_DIGEST") if number == 0 else None
        kept = folder / ("published-base.json" if number == 0 else f"published-base-{base.name}.json")
        digests[base.name] = given or await _published(kept, base.path, environment)
    return digests


async def published_drafters(
    folder: Path, bases: Sequence[LocalBase], environment: Mapping[str, str]
) -> dict[str, str]:
    """Returns the notes of the bases' draft adapters by the bases' names; packs and publishes those that are
    not in the object store. `folder` remembers them. Raises `CliError`.
    """
    return {
        base.name: await _drafter(folder, base, base.drafter, environment)
        for base in bases
        if base.drafter is not None
    }


async def _drafter(folder: Path, base: LocalBase, drafter: Path, environment: Mapping[str, str]) -> str:
    kept = folder / f"published-drafter-{base.name}.json"
    fingerprint = _fingerprint(base.path, environment) + _fingerprint(drafter, environment)
    known = read_json(kept) or {}
    if known.get("fingerprint") == fingerprint:
        with plain_errors():
            digest = json.loads(known["note"])["digest"]
            if await object_store(environment).head(published_key(digest)) is not None:
                return str(known["note"])
    command = ("cli.main", "base", "publish-drafter", str(base.path), str(drafter))
    failure = f"the draft adapter of {base.name} could not be published"
    note = (await run_child(*command, environment=environment, failure=failure)).decode().strip()
    write_private_json(kept, {"fingerprint": fingerprint, "note": note})
    return note


async def _published(kept: Path, base: Path, environment: Mapping[str, str]) -> str:
    fingerprint = _fingerprint(base, environment)
    known = read_json(kept) or {}
    if known.get("fingerprint") == fingerprint:
        with plain_errors():
            if await object_store(environment).head(manifest_key(known["digest"])) is not None:
                return str(known["digest"])
    # A child: a large base is hashed for minutes, and the operator may stop meanwhile.
    command = ("cli.main", "base", "publish", str(base))
    output = await run_child(*command, environment=environment, failure="the base could not be published")
    digest = output.decode().strip()
    write_private_json(kept, {"fingerprint": fingerprint, "digest": digest})
    return digest


def _fingerprint(base: Path, environment: Mapping[str, str]) -> str:
    """Returns what is different if files of the base or the store are, without reading the files."""
    store = [environment.get(f"ROOTSTOCK_STORAGE_{name}", "") for name in ("URL", "ENDPOINT")]
    digest = hashlib.sha256("\n".join([str(base.resolve()), *store]).encode())
    for path in sorted(base.iterdir()):
        seen = path.stat()
        digest.update(f"{path.name}\0{seen.st_size}\0{seen.st_mtime_ns}\0".encode())
    return digest.hexdigest()
