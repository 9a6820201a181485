"""Collects what a service's secrets are: its settings and key files. Writes them where they are restored.

Settings are kept as a whole: addresses contain passwords, and the rest says how the service was run.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path

from cli.datadir import write_private_json
from cli.errors import CliError
from cli.service_access import KEY_SECRET, PREVIOUS_KEY_SECRET
from engine.journal.records import write_private

_DATA_FILES = ("secrets.json", "clients.key", "ray.token", "signing.key")
"""Key files of the data directory of `rootstock up`."""
_FILE_SETTINGS = "_KEY_FILE"
"""How the settings end that name a key file."""
Secrets = dict[str, dict[str, str]]
"""`settings` by name; `files`, in Base64, by the setting that names them or by their name in `--data`."""


def collect(environment: Mapping[str, str], data: Path | None) -> Secrets:
    """Returns the service's secrets. Raises `CliError` when a key file cannot be read."""
    settings = {name: value for name, value in environment.items() if name.startswith("ROOTSTOCK_")}
    paths = {name: Path(value) for name, value in settings.items() if name.endswith(_FILE_SETTINGS)}
    if data is not None:
        paths |= {name: data / name for name in _DATA_FILES if (data / name).exists()}
    files = {}
    for name, path in paths.items():
        try:
            files[name] = base64.b64encode(path.read_bytes()).decode()
        except OSError as error:
            raise CliError(f"{name}: {path} cannot be read: {error.strerror}") from error
    return {"settings": settings, "files": files}


def check_key_secret(secrets: Secrets, environment: Mapping[str, str]) -> None:
    """Raises `CliError` unless the service to restore has the key secrets that the backup's rows need."""
    accepted = {environment.get(name) for name in (KEY_SECRET, PREVIOUS_KEY_SECRET)}
    for name in (KEY_SECRET, PREVIOUS_KEY_SECRET):
        needed = secrets["settings"].get(name)
        if needed and needed not in accepted:
            raise CliError(
                f"{name} of the backup is neither {KEY_SECRET} nor {PREVIOUS_KEY_SECRET} here, so "
                "no API key would work: take both from `rootstock backup secrets`"
            )


def write_to_data(secrets: Secrets, data: Path) -> None:
    """Writes the key files of a data directory for `rootstock up`."""
    for name, content in secrets["files"].items():
        if name in _DATA_FILES:
            write_private(data / name, [base64.b64decode(content)])
    key_secret = secrets["settings"].get(KEY_SECRET)
    if "secrets.json" not in secrets["files"] and key_secret is not None:
        kept = {"key_secret": key_secret, "previous_key_secret": secrets["settings"].get(PREVIOUS_KEY_SECRET)}
        write_private_json(data / "secrets.json", {name: value for name, value in kept.items() if value})


def write_out(secrets: Secrets, folder: Path) -> list[Path]:
    """Writes `rootstock.env` and the key files into a new folder that only this account can enter."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise CliError(f"--out {folder}: {error.strerror}: name a directory that does not exist") from error
    lines = [f"{name}={_quoted(value)}\n".encode() for name, value in sorted(secrets["settings"].items())]
    contents = {name: base64.b64decode(content) for name, content in secrets["files"].items()}
    contents["rootstock.env"] = b"".join(lines)
    for name, content in contents.items():
        write_private(folder / name, [content])
    return sorted(folder / name for name in contents)


def _quoted(value: str) -> str:
    """Returns a value as systemd's EnvironmentFile and shells read it."""
    if value.replace("_", "").replace("-", "").isalnum():
        return value
    return "'" + value.replace("'", "'\\''") + "'"


def engine_folders(environment: Mapping[str, str]) -> list[Path]:
    """Returns the folders of the engines whose disks are on this machine."""
    parent = Path(environment.get("ROOTSTOCK_ENGINE_DATA_DIR") or os.devnull) / "engine"
    return sorted(path for path in parent.glob("*/") if path.is_dir())
