"""Loads are reported one by one, right or wrong, and the thread outlives every failure."""

import queue
import threading

import pytest

from engine.lora.artifact import PackedAdapter, artifact_path
from engine.lora.loader import AdapterLoader
from engine.lora.pool import AdapterPool
from engine.protocol import AdapterRef
from tests.engine.lora.adapters import CONFIG, packed


class Rig:
    def __init__(self, directory, num_slots=4, base_digest=None):
        self.directory = directory
        self.pool = AdapterPool(CONFIG, num_slots)
        self.reports = queue.SimpleQueue()
        self.loader = AdapterLoader(
            directory, self.pool, lambda *report: self.reports.put(report), base_digest
        )

    def write(self, adapter: PackedAdapter) -> AdapterRef:
        adapter.write(artifact_path(self.directory, adapter.digest))
        return AdapterRef(adapter.digest, adapter.manifest.rank)

    def load(self, slot: int, ref: AdapterRef):
        self.loader.start_load(slot, ref)
        return self.reports.get(timeout=10)


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path)
    yield rig
    rig.loader.close()


def test_a_load_fills_the_slot_before_it_is_reported(rig):
    ref = rig.write(packed(q_proj=3))
    assert rig.load(2, ref) == (2, ref.digest, None)
    assert rig.pool.group(0, "qkv")[2].ranks == (3, 0, 0)


def test_loads_are_done_in_order(rig):
    refs = [rig.write(packed(seed=seed, q_proj=2)) for seed in range(4)]
    for slot, ref in enumerate(refs):
        rig.loader.start_load(slot, ref)
    assert [rig.reports.get(timeout=10)[:2] for _ in refs] == [(i, r.digest) for i, r in enumerate(refs)]


def test_every_failure_is_reported_and_the_next_load_works(rig, tmp_path, monkeypatch):
    good = rig.write(packed(q_proj=3))

    absent = AdapterRef("0" * 64, 4)
    slot, digest, error = rig.load(0, absent)
    assert (slot, digest) == (0, absent.digest)
    assert error == f"no packed adapter {absent.digest} on this engine's disk"

    damaged = rig.write(packed(seed=1, q_proj=3))
    path = artifact_path(tmp_path, damaged.digest)
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    assert "digest: content is" in rig.load(0, damaged)[2]

    path.write_bytes(b"nonsense")
    assert "magic" in rig.load(0, damaged)[2]

    assert "rank: is 3, the request says 8" in rig.load(0, AdapterRef(good.digest, 8))[2]

    misfit = rig.write(packed(num_layers=3, q_proj=3))
    assert "layers: there are 3" in rig.load(0, misfit)[2]

    path.unlink()
    path.mkdir()
    assert "cannot be read: Is a directory" in rig.load(0, damaged)[2]

    def out_of_memory(slot, packed):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(rig.pool, "load", out_of_memory)
        assert rig.load(0, good)[2] == "not enough memory for the adapter"

    def device_refuses(slot, packed):
        raise RuntimeError("device says no")

    with monkeypatch.context() as patched:
        patched.setattr(rig.pool, "load", device_refuses)
        assert "device says no" in rig.load(0, good)[2]

    assert rig.load(0, good) == (0, good.digest, None)


def test_no_error_tells_the_tenant_where_files_lie(rig, tmp_path):
    for ref in (AdapterRef("0" * 64, 4), rig.write(packed(num_layers=1, q_proj=3))):
        assert str(tmp_path) not in rig.load(0, ref)[2]


def test_a_failed_load_leaves_the_slot_empty(rig):
    assert rig.load(0, rig.write(packed(q_proj=3)))[2] is None
    assert rig.load(0, AdapterRef("0" * 64, 4))[2] is not None
    assert rig.pool.group(0, "qkv")[0] is None


def test_an_adapter_packed_for_another_base_is_refused(tmp_path):
    rig = Rig(tmp_path, base_digest="a" * 64)
    assert "base_digest: packed against another base" in rig.load(0, rig.write(packed(q_proj=3)))[2]
    rig.loader.close()


def test_close_waits_for_the_load_under_way_and_drops_the_rest(tmp_path, monkeypatch):
    rig = Rig(tmp_path)
    ref = rig.write(packed(q_proj=3))
    began, go_on = threading.Event(), threading.Event()
    load = rig.pool.load

    def slow(slot, packed):
        began.set()
        assert go_on.wait(10)
        load(slot, packed)

    monkeypatch.setattr(rig.pool, "load", slow)
    rig.loader.start_load(0, ref)
    rig.loader.start_load(1, ref)
    assert began.wait(10)
    closing = threading.Thread(target=rig.loader.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    go_on.set()
    closing.join(10)
    assert not closing.is_alive()
    assert rig.reports.get_nowait() == (0, ref.digest, None)
    assert rig.reports.empty()
    with pytest.raises(AssertionError, match="closed"):
        rig.loader.start_load(0, ref)
