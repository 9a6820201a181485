"""An engine loads what was signed, and one flipped bit anywhere is refused before a slot is filled."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.lora.artifact import PackedAdapter, artifact_path
from engine.lora.loader import AdapterLoader
from engine.lora.pool import AdapterPool
from engine.lora.signatures import (
    MAX_REFUSALS,
    AdapterVerifier,
    SignedReport,
    signature_path,
    verify_signed,
    write_signature,
)
from engine.protocol import AdapterRef
from engine.signing import bundle, folder
from engine.signing.errors import SignatureError
from engine.signing.keys import SigningKey, TrustedKeys
from engine.signing.statement import encode_statement
from tests.engine.lora.adapters import CONFIG, packed

KEY = SigningKey.make()
KEYS = TrustedKeys([KEY.public])
BASE = "b" * 64
REPORT = '{"object":"calibration.report","decision":{"ready":true}}'


def signature(adapter: PackedAdapter, report: str | None = REPORT, key: SigningKey = KEY) -> bytes:
    digests = {
        folder.packed("bfloat16"): adapter.digest,
        folder.BASE: folder.sha256(folder.base_document(BASE)),
        folder.source("adapter_config.json"): folder.sha256(b"{}"),
    }
    if report is not None:
        digests[folder.REPORT] = folder.sha256(report.encode())
    return SignedReport(bundle.sign(key, encode_statement("adp@1", digests)).decode(), report).encode()


ADAPTER = packed(q_proj=3)
SIGNED = signature(ADAPTER)
"""Made once: every signature is another, and not of the same length."""


class Site:
    """A folder of packed adapters, and the loader of an engine with a host pool."""

    def __init__(self, folder: Path, *, required: bool = False, base: str = BASE) -> None:
        self.folder = folder
        self.pool = AdapterPool(CONFIG, 2)
        self.reports: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.verifier = AdapterVerifier(KEYS, base, requires_signature=required)
        self.loader: AdapterLoader[Any] = AdapterLoader(
            folder, self.pool, lambda *report: self.reports.put(report), base, verifier=self.verifier
        )

    def write(self, adapter: PackedAdapter, signed: bytes | None) -> AdapterRef:
        adapter.write(artifact_path(self.folder, adapter.digest))
        if signed is not None:
            write_signature(self.folder, adapter.digest, signed)
        return AdapterRef(adapter.digest, adapter.manifest.rank)

    def load(self, ref: AdapterRef) -> str | None:
        self.loader.size_of(ref)
        self.loader.start_load(0, ref)
        _, _, error = self.reports.get(timeout=10)
        assert (self.pool.group(0, "qkv")[0] is None) == (error is not None)
        return error

    def close(self) -> None:
        self.loader.close()
        self.pool.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    opened = Site(tmp_path)
    yield opened
    opened.close()


def test_a_signed_adapter_is_loaded_and_counted(site: Site) -> None:
    adapter = packed(q_proj=3)
    ref = site.write(adapter, signature(adapter))
    assert site.load(ref) is None
    assert site.verifier.counters.verified == 1
    assert not site.verifier.refusals()


def test_an_adapter_that_is_not_measured_yet_is_signed_without_a_report(site: Site) -> None:
    adapter = packed(q_proj=3)
    assert site.load(site.write(adapter, signature(adapter, None))) is None


def test_an_unsigned_adapter_is_loaded_unless_signatures_are_required(site: Site, tmp_path: Path) -> None:
    ref = site.write(packed(q_proj=3), None)
    assert site.load(ref) is None
    assert site.verifier.counters.unsigned == 1
    strict = Site(tmp_path, required=True)
    error = strict.load(ref)
    strict.close()
    assert error is not None
    assert "loads signed adapters only" in error
    assert strict.verifier.counters.refused == {"unsigned": 1}


def test_the_signature_of_another_adapter_base_or_key_is_refused(site: Site, tmp_path: Path) -> None:
    one, other = packed(q_proj=3), packed(seed=5, q_proj=3)
    assert "covers no packed adapter" in (site.load(site.write(one, signature(other))) or "")
    assert "is none that is accepted" in (
        site.load(site.write(one, signature(one, key=SigningKey.make()))) or ""
    )
    elsewhere = Site(tmp_path, base="f" * 64)
    error = elsewhere.load(elsewhere.write(one, signature(one)))
    elsewhere.close()
    assert "base.json: its SHA-256" in (error or "")
    assert site.verifier.counters.refused == {"signature": 2}


def test_a_report_that_was_signed_must_be_there(site: Site) -> None:
    adapter = packed(q_proj=3)
    without = SignedReport(SignedReport.decode(signature(adapter)).bundle, None).encode()
    assert "calibration/report.json: it was signed and is missing" in (
        site.load(site.write(adapter, without)) or ""
    )


def test_a_refusal_is_shown_until_the_adapter_is_loaded(site: Site) -> None:
    adapter = packed(q_proj=3)
    ref = site.write(adapter, b"{}")
    assert site.load(ref)
    (refusal,) = site.verifier.refusals()
    assert (refusal.digest, refusal.reason[:10]) == (ref.digest, "signature:")
    write_signature(site.folder, ref.digest, signature(adapter))
    assert site.load(ref) is None
    assert not site.verifier.refusals()
    for number in range(MAX_REFUSALS + 1):
        site.verifier.refused(f"{number:064x}", "file", ValueError("x"))  # type: ignore[arg-type]
    assert len(site.verifier.refusals()) == MAX_REFUSALS


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_flipped_bit_anywhere_is_refused(site: Site, data: st.DataObject) -> None:
    """In the weights, or in the file with signature, statement, and report."""
    ref = site.write(ADAPTER, SIGNED)
    target = data.draw(
        st.sampled_from([artifact_path(site.folder, ref.digest), signature_path(site.folder, ref.digest)])
    )
    content = bytearray(target.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    target.write_bytes(content)
    error = site.load(ref)
    assert error is not None
    assert error.startswith("packed adapter rejected")
    assert sum(site.verifier.counters.refused.values()) >= 1


@given(bit=st.integers(0, 8 * len(BASE) - 1))
def test_one_flipped_bit_in_the_digest_of_the_base_is_refused(bit: int) -> None:
    adapter, base = packed(q_proj=3), bytearray(BASE.encode())
    base[bit // 8] ^= 1 << bit % 8
    with pytest.raises(SignatureError, match=r"base\.json"):
        verify_signed(signature(adapter), adapter.digest, KEYS, base.decode("latin-1"))
