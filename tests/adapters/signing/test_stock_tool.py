"""The stock tool of OpenSSF Model Signing accepts what the platform signed, and the reverse."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from typer.testing import CliRunner

from adapters.signing.export import export_version
from cli.main import app
from engine.signing import bundle, folder
from engine.signing.keys import SigningKey, TrustedKeys
from tests.adapters.signing.conftest import KEY, Platform
from tests.clients import environments
from tests.support.onboarding import SAPLING


def stock(*arguments: str) -> subprocess.CompletedProcess[str]:
    tool = environments.python("model-signing").with_name("model_signing")
    return subprocess.run([str(tool), *arguments], capture_output=True, text=True, timeout=60)


def verify(directory: Path, key: Path) -> subprocess.CompletedProcess[str]:
    options = ("--signature", str(directory / "model.sig"), "--public_key", str(key))
    return stock("verify", "key", str(directory), *options)


async def test_an_exported_version_is_verified_by_the_stock_tool_and_a_flipped_bit_is_not(
    platform: Platform, tmp_path: Path
) -> None:
    place, target, key = platform.place, tmp_path / "exported", tmp_path / "platform.pem"
    made = await place.create("pirate")
    row = await platform.serve(made)
    _, signature = await platform.look(made)
    assert signature is not None
    keys = TrustedKeys([KEY.public])
    await export_version(place.store, place.artifacts, row, signature, keys, target)
    key.write_text(KEY.public.pem)
    accepted = verify(target, key)
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    ours = ("adapter", "verify", str(target), "--public-key", str(key))
    ran = CliRunner().invoke(app, ours)
    assert (ran.exit_code, "6 files are what" in ran.output) == (0, True), ran.output

    rng = random.Random(3)
    victim = target / rng.choice(sorted(bundle.verify_own(signature.bundle.encode(), keys).digests))
    content = bytearray(victim.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    victim.write_bytes(content)
    refused = verify(target, key)
    assert refused.returncode != 0
    assert "Hash mismatch" in refused.stdout + refused.stderr
    ran = CliRunner().invoke(app, ours)
    assert ran.exit_code != 0
    assert "the signature says" in str(ran.exception) + ran.output


def test_a_folder_that_the_stock_tool_signed_is_verified_here(tmp_path: Path) -> None:
    directory, mine = tmp_path / "pirate", SigningKey.make()
    directory.mkdir()
    for file in (SAPLING / "adapters" / "pirate").iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    (tmp_path / "private.pem").write_text(mine.pem)
    options = ("--private_key", str(tmp_path / "private.pem"), "--signature", str(directory / "model.sig"))
    signed = stock("sign", "key", str(directory), *options)
    assert signed.returncode == 0, signed.stdout + signed.stderr
    verified = bundle.verify((directory / "model.sig").read_bytes(), TrustedKeys([mine.public]))
    folder.check_folder(verified, directory)
