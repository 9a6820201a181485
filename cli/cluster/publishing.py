"""Publishes bases of `rootstock up --ray` and their draft adapters, once for the same files and store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    publishing = _Publishing(environment, "digest", manifest_key)
    digests = {}
    for number, base in enumerate(bases):
        given = environment.get("ROOTSTOCK_BASE_DIGEST") if number == 0 else None
        kept = folder / ("published-base.json" if number == 0 else f"published-base-{base.name}.json")
        digests[base.name] = given or await publishing.once(kept, "publish", base.path)
    return digests


async def published_drafters(
    folder: Path, bases: Sequence[LocalBase], environment: Mapping[str, str]
) -> dict[str, str]:
    """Returns the notes of the bases' draft adapters by the bases' names; packs and publishes those that are
    not in the object store. `folder` remembers them. Raises `CliError`.
    """
    publishing = _Publishing(environment, "note", lambda note: published_key(json.loads(note)["digest"]))
    return {
        base.name: await publishing.once(
            folder / f"published-drafter-{base.name}.json", "publish-drafter", base.path, base.drafter
        )
        for base in bases
        if base.drafter is not None
    }


@dataclass(frozen=True)
class _Publishing:
    """Publishes one kind of folders."""

    environment: Mapping[str, str]
    name: str
    """Of what the command prints, where it is kept."""
    key: Callable[[str], str]
    """Returns the key in the object store of what was printed."""

    async def once(self, kept: Path, command: str, *folders: Path) -> str:
        """Returns what `rootstock base COMMAND FOLDER...` prints; runs it unless `kept` says that it ran for
        these files, and the store has them. Raises `CliError`.
        """
        fingerprint = "".join(_fingerprint(folder, self.environment) for folder in folders)
        known = read_json(kept) or {}
        if known.get("fingerprint") == fingerprint:
            with plain_errors():
                if await object_store(self.environment).head(self.key(known[self.name])) is not None:
                    return str(known[self.name])
        # A child: a large base is hashed for minutes, and the operator may stop meanwhile.
        words = ("cli.main", "base", command, *map(str, folders))
        failure = f"{folders[-1]} could not be published"
        printed = (await run_child(*words, environment=self.environment, failure=failure)).decode().strip()
        write_private_json(kept, {"fingerprint": fingerprint, self.name: printed})
        return printed


def _fingerprint(base: Path, environment: Mapping[str, str]) -> str:
    """Returns what is different if files of the base or the store are, without reading the files."""
    store = [environment.get(f"ROOTSTOCK_STORAGE_{name}", "") for name in ("URL", "ENDPOINT")]
    digest = hashlib.sha256("\n".join([str(base.resolve()), *store]).encode())
    for path in sorted(base.iterdir()):
        seen = path.stat()
        digest.update(f"{path.name}\0{seen.st_size}\0{seen.st_mtime_ns}\0".encode())
    return digest.hexdigest()
