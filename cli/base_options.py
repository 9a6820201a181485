"""Parses the options of `rootstock up` that name base models and what is theirs: `--base`, `--base-name`,
`--quantization`, `--drafter`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from cli.demo import DEMO_BASE
from cli.errors import CliError, UsageError
from cli.programs import LocalBase
from engine.device.capabilities import device_kind, refusal
from engine.lora.draft_adapters import DESCRIPTION_FILE

_DEMO_QUANTIZATION = {"cpu": "int8", "cuda": "fp8"}
_FORMATS = ("none", "int8", "fp8", "int4")
_NAME = re.compile(r"[a-z0-9._-]{1,64}")


def parse_bases(
    bases: Sequence[str],
    name: str | None,
    quantizations: Sequence[str],
    drafters: Sequence[str] = (),
    *,
    is_demo: bool,
) -> tuple[LocalBase, ...]:
    """Returns the base models that are served, the default one first.

    Args:
        bases: `[NAME=]DIR` each; a demo without any serves sapling.
        name: of the only base, in place of its directory's name.
        quantizations: a weight format for all bases, or `NAME=FORMAT`. The demo's default is the smallest
            that gives the same answers.
        drafters: the folder of a draft adapter of the only base, or `NAME=DIR`.

    Raises UsageError, and CliError for a directory that is no base model.
    """
    for one in quantizations:
        if (format := one.rpartition("=")[2]) not in _FORMATS:
            raise UsageError(f"--quantization {one}: {format!r} is not one of {', '.join(_FORMATS)}")
    found = [_named(base) for base in bases] or ([("sapling", DEMO_BASE)] if is_demo else [])
    if not found:
        raise UsageError(
            "no base model: pass --base DIR (Hugging Face layout), or --demo for the one that is included"
        )
    if name is not None:
        if len(found) > 1:
            raise UsageError("--base-name is for one base: pass --base NAME=DIR for each of several")
        found = [(name, found[0][1])]
    for _, path in found:
        if not (path / "config.json").is_file():
            raise CliError(
                f"{path} holds no config.json: pass a model's directory in Hugging Face layout as --base"
            )
    names = [one for one, _ in found]
    twice = next((one for number, one in enumerate(names) if one in names[:number]), None)
    if twice is not None:
        raise UsageError(f"two bases are called {twice}: pass --base NAME=DIR with a name for each")
    formats = _formats(quantizations, names, is_demo)
    folders = _drafters(drafters, names)
    return tuple(LocalBase(one, path.resolve(), formats[one], folders.get(one)) for one, path in found)


def _drafters(drafters: Sequence[str], names: Sequence[str]) -> dict[str, Path]:
    """Returns the folders of the bases' draft adapters. Raises UsageError, and CliError for a folder that
    holds none.
    """
    found: dict[str, Path] = {}
    for one in drafters:
        name, equals, path = one.partition("=")
        if not equals or not _NAME.fullmatch(name) or Path(one).is_dir():
            name, path = names[0], one
            if len(names) > 1:
                raise UsageError(f"--drafter {one}: pass NAME=DIR, to say for which of {', '.join(names)}")
        if name not in names:
            raise UsageError(f"--drafter {one}: no base is called {name!r}, but {', '.join(names)}")
        if name in found:
            raise UsageError(f"--drafter {one}: {name} has one already: pass it once for each base")
        if not (Path(path) / DESCRIPTION_FILE).is_file():
            raise CliError(f"{path} holds no {DESCRIPTION_FILE}: pass a draft adapter's folder as --drafter")
        found[name] = Path(path).resolve()
    return found


def _named(base: str) -> tuple[str, Path]:
    """Returns name and directory from `[NAME=]DIR`."""
    name, equals, path = base.partition("=")
    if equals and _NAME.fullmatch(name) and not Path(base).is_dir():
        return name, Path(path)
    return Path(base).resolve().name.lower(), Path(base)


def _formats(quantizations: Sequence[str], names: Sequence[str], is_demo: bool) -> dict[str, str]:
    """Returns each base's weight format, if the device supports it. Raises UsageError, before anything
    starts.
    """
    try:
        kind = device_kind(os.environ.get("ROOTSTOCK_DEVICE_DEVICE", "auto"))
    except ValueError as error:
        raise UsageError(str(error)) from None
    formats = dict.fromkeys(names, _DEMO_QUANTIZATION[kind] if is_demo else "none")
    for one in sorted(quantizations, key=lambda given: "=" in given):  # a base's own goes first
        name, equals, format = one.rpartition("=")
        if equals and name not in formats:
            raise UsageError(f"--quantization {one}: no base is called {name!r}, but {', '.join(names)}")
        reason = refusal(kind, format)
        if reason is not None:
            raise UsageError(f"--quantization {one}: {reason}")
        formats |= {name: format} if equals else dict.fromkeys(names, format)
    return formats
