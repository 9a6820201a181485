"""Makes the key pair that all clients of encrypted engines share."""

from __future__ import annotations

from pathlib import Path

from cli.errors import CliError
from engine.transport.curve import KeyPair


def make_client_key(file: Path) -> str:
    """Returns the public key, in hexadecimal, of the secret key in the file, which is made unless it exists.

    Raises `CliError`.
    """
    try:
        KeyPair.make().write(file)
        return KeyPair.read(file).public.hex()
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}: name a file in a folder that can be written") from None
    except ValueError as error:
        raise CliError(str(error)) from None
