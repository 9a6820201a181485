"""Packs and publishes PEFT directories in a separate process, for callers that must not load torch.

Reads a task as JSON from standard input and writes adapter references as JSON to standard output.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import msgspec

from cli.errors import CliError
from cli.packed_adapters import publish_packed
from cli.service_access import pack_adapters, plain_errors


def main() -> int:
    task = json.load(sys.stdin)
    directories = {name: Path(path) for name, path in task["directories"].items()}
    try:
        refs = pack_adapters(os.environ, task["base_digest"], directories)
        with plain_errors():
            asyncio.run(publish_packed(os.environ, refs.values()))
    except CliError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    json.dump(msgspec.to_builtins(refs), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
