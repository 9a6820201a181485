"""Versions are signed when they become usable, and refused once one bit of them is not what was signed."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from adapters.bases import Bases
from adapters.deletion import purge_deleted
from adapters.errors import ModelNotReady
from adapters.models import AdapterVersion
from adapters.object_keys import artifact_key
from adapters.published_artifacts.publishing import published_signature_key
from adapters.resolver import ModelResolver
from adapters.signing.signer import SignedFiles
from adapters.signing.stored import verify_row
from engine.lora.artifact import artifact_path
from engine.lora.signatures import signature_path, verify_signed
from engine.signing import bundle, folder
from engine.signing.errors import SignatureError
from engine.signing.keys import TrustedKeys
from retention.sweep import RetentionSweep
from tenants.retention.classes import RetentionBounds
from tests.adapters.signing.conftest import KEY, OTHER_KEY, REPORT, Platform
from tests.retention.rows import set_days
from tests.support.onboarding import BASE, BASE_DIGEST

NOW = datetime(2030, 1, 1, tzinfo=UTC)
KEYS = TrustedKeys([KEY.public])


def flipped(content: bytes, rng: random.Random) -> bytes:
    changed, bit = bytearray(content), rng.randrange(8 * len(content))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


async def test_a_version_is_signed_when_it_is_packed_and_again_with_its_report(platform: Platform) -> None:
    place = platform.place
    made = await place.create("pirate")
    row = await platform.serve(made)
    _, signature = await platform.look(made)
    assert signature is not None
    verified = bundle.verify_own(signature.bundle.encode(), KEYS)
    assert set(verified.digests) == {
        "base.json",
        "calibration/report.json",
        "packed/bfloat16.rsa",
        "packed/float8_e4m3.rsa",
        "source/adapter_config.json",
        "source/adapter_model.safetensors",
    }
    assert signature.key_id == KEY.public.id
    for one in row.artifacts.values():
        raw = signature_path(place.artifacts, one["digest"]).read_bytes()
        verify_signed(raw, one["digest"], KEYS, BASE_DIGEST)
        published = [piece async for piece in place.store.get(published_signature_key(one["digest"]))]
        assert b"".join(published) == raw
    assert "version.signed" in await place.column("SELECT type FROM adapter_events")


async def test_a_version_of_before_there_was_a_key_is_signed_later(
    platform: Platform,
) -> None:
    made = await platform.place.create("pirate")
    await platform.serve(made, signed=False)
    assert (await platform.look(made))[1] is None
    assert await platform.maintenance.sign_pending() == 1
    _, signature = await platform.look(made)
    assert signature is not None
    verified = bundle.verify_own(signature.bundle.encode(), KEYS)
    folder.check_content(verified, folder.REPORT, REPORT)
    assert await platform.maintenance.sign_pending() == 0
    assert await platform.maintenance.check_due(NOW) == 0


async def test_a_rotated_key_signs_everything_anew_and_damage_is_not_signed(platform: Platform) -> None:
    good, bad = [await platform.place.create(name, name) for name in ("pirate", "to-json")]
    await platform.place.make_ready(good, "5")
    assert await platform.maintenance.sign_pending() == 1
    await platform.serve(bad)
    _, signature = await platform.look(bad)
    assert signature is not None
    assert signature.report_key is not None
    await platform.place.store.put(signature.report_key, flipped(REPORT, random.Random(1)))
    platform.keys = [OTHER_KEY, KEY]
    assert await platform.maintenance.sign_pending() == 1
    (signed, of_good), (refused, of_bad) = await platform.look(good), await platform.look(bad)
    assert of_good is not None
    assert of_bad is not None
    assert (of_good.key_id, signed.signature_problem) == (OTHER_KEY.public.id, None)
    assert of_bad.key_id == KEY.public.id
    assert refused.signature_problem is not None
    assert refused.signature_problem.startswith("calibration/report.json: its SHA-256 is")
    # The operator restores the file, and signs it knowingly.
    await platform.place.store.put(signature.report_key, REPORT)
    assert await platform.maintenance.sign(refused.tenant_id, bad.adapter.id, 1, anyway=True)
    assert (await platform.look(bad))[0].signature_problem is None


async def test_sources_that_a_period_deleted_are_no_difference(platform: Platform) -> None:
    place = platform.place
    made = await place.create("pirate")
    row = await platform.serve(made)
    await set_days(place.database, "adapter_sources", 1, row.tenant_id)
    async with place.database.write(row.tenant_id) as session:
        await session.execute(text("UPDATE adapter_versions SET ready_at = now() - interval '2 days'"))
    bounds = RetentionBounds({}, backup_days=30, books_years=10)
    assert await RetentionSweep(place.database, bounds).run_for(row.tenant_id) == 1
    kept, _ = await platform.look(made)
    assert kept.sources == {}
    assert await platform.maintenance.check_due(NOW) == 0
    kept, signature = await platform.look(made)
    assert kept.signature_problem is None
    assert signature is not None
    verified = verify_row(kept, signature, KEYS)
    assert not any(folder.is_source(path) for path in verified.digests)
    assert folder.REPORT in verified.digests
    platform.keys = [OTHER_KEY, KEY]
    assert await platform.maintenance.sign_pending() == 1
    # Where some are left, one that is missing is a difference.
    platform.keys = [KEY]
    half = await platform.place.create("to-json", "to-json")
    row = await platform.serve(half)
    _, signature = await platform.look(half)
    assert signature is not None
    row.sources = {"adapter_config.json": row.sources["adapter_config.json"]}
    with pytest.raises(SignatureError, match=r"source/adapter_model\.safetensors: it was signed"):
        verify_row(row, signature, KEYS)


async def test_one_flipped_bit_in_what_is_stored_is_refused(platform: Platform) -> None:
    """Every kind of file, the engines' copies, the signature, and the rows; each is put right again."""
    place, rng = platform.place, random.Random(20)
    made = await place.create("pirate")
    row = await platform.serve(made)
    _, signature = await platform.look(made)
    assert signature is not None
    resolver = ModelResolver(place.database, place.redis, Bases(BASE), ttl=0.0)
    tenant, at = place.tenants[0], NOW

    async def refused(what: str) -> None:
        nonlocal at
        at += timedelta(days=8)
        assert await platform.maintenance.check_due(at) == 1, what
        with pytest.raises(ModelNotReady, match="not what was signed"):
            await resolver.resolve(tenant, "sapling:pirate")

    async def served() -> None:
        nonlocal at
        at += timedelta(days=8)
        assert await platform.maintenance.check_due(at) == 0
        assert (await resolver.resolve(tenant, "sapling:pirate")).adapter is not None

    await served()
    objects = [source["key"] for source in row.sources.values()]
    objects += [artifact_key(tenant, made.adapter.id, 1, dtype) for dtype in row.artifacts]
    objects.append(signature.report_key or "")
    for key in objects:
        content = b"".join([piece async for piece in place.store.get(key)])
        await place.store.put(key, flipped(content, rng))
        await refused(key)
        await place.store.put(key, content)
        await served()
    for digest in SignedFiles.of_version(row).artifacts:
        for path in (artifact_path(place.artifacts, digest), signature_path(place.artifacts, digest)):
            content = path.read_bytes()
            path.write_bytes(flipped(content, rng))
            await refused(path.name)
            path.write_bytes(content)
            await served()
        path.unlink()
        await served()
        assert path.read_bytes() == content, "a signature that engines lack is put back"
    other = flipped(bytes.fromhex(BASE_DIGEST), rng).hex()
    columns = {
        "adapter_versions SET base_digest": (other, BASE_DIGEST),
        "adapter_signatures SET bundle": (
            flipped(signature.bundle.encode(), rng).decode("latin-1").replace("\0", "x"),
            signature.bundle,
        ),
    }
    for column, (wrong, right) in columns.items():
        await platform.execute([f"UPDATE {column} = $signed${wrong}$signed$"])
        await refused(column)
        await platform.execute([f"UPDATE {column} = $signed${right}$signed$"])
        await served()
    await place.store.delete(objects[0])
    await refused("a missing file")
    assert set(platform.changed) == {tenant}


async def test_a_row_that_differs_from_its_signature_is_refused(platform: Platform) -> None:
    made = await platform.place.create("pirate")
    await platform.place.make_ready(made, "5")
    await platform.maintenance.sign_pending()
    damages: list[Callable[[AdapterVersion], object]] = [
        lambda row: row.sources["adapter_config.json"].update(sha256="0" * 64),
        lambda row: row.sources.pop("adapter_config.json"),
        lambda row: row.sources.update({"more.json": {"sha256": "0" * 64}}),
        lambda row: row.artifacts["bfloat16"].update(digest="0" * 64),
        lambda row: row.artifacts.clear(),
        lambda row: setattr(row, "digest", "0" * 64),
        lambda row: setattr(row, "base_digest", "0" * 64),
    ]
    for damage in damages:
        row, signature = await platform.look(made)
        assert signature is not None
        verify_row(row, signature, KEYS)
        damage(row)
        with pytest.raises(SignatureError):
            verify_row(row, signature, KEYS)


async def test_a_signature_goes_with_its_version(
    platform: Platform,
) -> None:
    place = platform.place
    made = await place.create("pirate")
    await place.make_ready(made, "5")
    assert await platform.maintenance.sign_pending() == 1
    paths = [signature_path(place.artifacts, digit * 32) for digit in ("5b", "5f")]
    assert all(path.exists() for path in paths)
    await place.onboarding.deletion.delete(place.tenants[0], made.adapter.id)
    later = datetime.now(UTC) + timedelta(hours=1)
    await purge_deleted(place.database, place.store, place.artifacts, later)
    assert not any(path.exists() for path in paths)
    assert await place.column("SELECT adapter_id FROM adapter_signatures") == []
    assert await place.store.head(published_signature_key("5b" * 32)) is None
