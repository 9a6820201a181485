"""Loads are reported one by one, right or wrong, and the threads outlive every failure: for either pool."""

import queue
import threading

import pytest

from engine.lora.artifact import PackedAdapter, artifact_path
from engine.lora.device_pool import DevicePool
from engine.lora.loader import AdapterLoader
from engine.lora.pool import AdapterPool
from engine.lora.slots import NO_SLOT, SlotState, SlotTable
from engine.protocol import AdapterRef
from tests.engine.lora.adapters import CONFIG, assert_empty, assert_holds, packed


class Rig:
    def __init__(
        self,
        directory,
        kind="device",
        num_slots=4,
        base_digest=None,
        num_bytes=1 << 20,
        num_readers=1,
        draft_adapters=None,
    ):
        self.directory = directory
        self.pool = (
            AdapterPool(CONFIG, num_slots)
            if kind == "host"
            else DevicePool(CONFIG, num_slots, num_bytes, 1 << 20, "cpu")
        )
        self.reports = queue.SimpleQueue()
        self.loader = AdapterLoader(
            directory,
            self.pool,
            lambda *report: self.reports.put(report),
            base_digest,
            num_readers,
            draft_adapters=draft_adapters,
        )

    def write(self, adapter: PackedAdapter) -> AdapterRef:
        adapter.write(artifact_path(self.directory, adapter.digest))
        return AdapterRef(adapter.digest, adapter.manifest.rank)

    def load(self, slot: int, ref: AdapterRef):
        self.loader.size_of(ref)
        self.loader.start_load(slot, ref)
        return self.reports.get(timeout=10)

    def is_empty(self, slot: int) -> bool:
        if isinstance(self.pool, DevicePool):
            assert_empty(self.pool, slot)
            return True
        return self.pool.group(0, "qkv")[slot] is None

    def holds(self, slot: int, adapter: PackedAdapter) -> bool:
        if isinstance(self.pool, DevicePool):
            assert_holds(self.pool, slot, adapter)
            return True
        return self.pool.group(0, "qkv")[slot].ranks == (adapter.manifest.rank, 0, 0)


@pytest.fixture(params=["host", "device"])
def rig(tmp_path, request):
    rig = Rig(tmp_path, request.param)
    yield rig
    rig.loader.close()
    rig.pool.close()


def test_a_load_fills_the_slot_before_it_is_reported(rig):
    adapter = packed(dtype="bfloat16", q_proj=3)
    ref = rig.write(adapter)
    assert rig.load(2, ref) == (2, ref.digest, None)
    assert rig.holds(2, adapter)
    assert rig.loader.load_seconds > 0


def test_loads_are_done_in_order(rig):
    refs = [rig.write(packed(seed=seed, q_proj=2)) for seed in range(4)]
    for slot, ref in enumerate(refs):
        rig.loader.size_of(ref)
        rig.loader.start_load(slot, ref)
    assert [rig.reports.get(timeout=10)[:2] for _ in refs] == [(i, r.digest) for i, r in enumerate(refs)]


def test_every_failure_is_reported_and_the_next_load_works(rig, tmp_path, monkeypatch):
    good = rig.write(packed(q_proj=3))

    absent = AdapterRef("0" * 64, 4)
    slot, digest, error = rig.load(0, absent)
    assert (slot, digest) == (0, absent.digest)
    assert error == f"packed adapter {absent.digest} is not on this engine's disk"

    damaged = rig.write(packed(seed=1, q_proj=3))
    path = artifact_path(tmp_path, damaged.digest)
    whole = path.read_bytes()
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    assert "digest: content is" in rig.load(0, damaged)[2]

    path.write_bytes(b"nonsense")
    assert "magic" in rig.load(0, damaged)[2]

    assert "rank: is 3, the request says 8" in rig.load(0, AdapterRef(good.digest, 8))[2]

    misfit = rig.write(packed(num_layers=3, q_proj=3))
    assert "layers: the adapter has 3" in rig.load(0, misfit)[2]

    path.unlink()
    path.mkdir()
    assert "cannot be read: Is a directory" in rig.load(0, damaged)[2]
    path.rmdir()
    path.write_bytes(whole)

    for error, reason in (
        (MemoryError(), "not enough memory for the adapter"),
        (MemoryError("needs 3 bytes"), "not enough memory for the adapter: needs 3 bytes"),
        (RuntimeError("device says no"), "packed adapter rejected: device says no"),
    ):

        def fail(slot, held, error=error):
            rig.pool.drop(held)
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(rig.pool, "load", fail)
            assert rig.load(0, good)[2] == reason

    assert rig.load(0, good) == (0, good.digest, None)
    assert rig.load(1, damaged) == (1, damaged.digest, None)
    if isinstance(rig.pool, DevicePool):
        rig.pool.host_cache.check_integrity()


def test_no_error_tells_the_tenant_where_files_lie(rig, tmp_path):
    for ref in (AdapterRef("0" * 64, 4), rig.write(packed(num_layers=1, q_proj=3))):
        assert str(tmp_path) not in rig.load(0, ref)[2]


def test_a_failed_load_leaves_the_slot_empty(rig):
    assert rig.load(0, rig.write(packed(q_proj=3)))[2] is None
    assert rig.load(0, AdapterRef("0" * 64, 4))[2] is not None
    assert rig.is_empty(0)


@pytest.mark.parametrize("kind", ["host", "device"])
def test_an_adapter_packed_for_another_base_is_refused(tmp_path, kind):
    rig = Rig(tmp_path, kind, base_digest="a" * 64)
    assert "base_digest: packed against another base" in rig.load(0, rig.write(packed(q_proj=3)))[2]
    rig.loader.close()


@pytest.mark.parametrize("kind", ["host", "device"])
def test_close_waits_for_the_load_under_way_and_drops_the_rest(tmp_path, monkeypatch, kind):
    rig = Rig(tmp_path, kind)
    ref = rig.write(packed(q_proj=3))
    began, go_on = threading.Event(), threading.Event()
    load = rig.pool.load

    def slow(slot, packed):
        began.set()
        assert go_on.wait(10)
        load(slot, packed)

    monkeypatch.setattr(rig.pool, "load", slow)
    rig.loader.size_of(ref)
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


def test_sizes_are_those_of_the_pool_and_unknown_without_a_manifest(rig, tmp_path):
    adapter = packed(dtype="bfloat16", q_proj=3)
    ref = rig.write(adapter)
    assert rig.loader.capacity == rig.pool.capacity
    assert rig.loader.size_of(ref) == rig.pool.size_of(adapter.manifest)
    assert rig.loader.size_of(AdapterRef("0" * 64, 3)) is None
    path = artifact_path(tmp_path, ref.digest)
    path.write_bytes(b"nonsense")
    assert rig.loader.size_of(ref) is not None, "a digest's size never changes"
    other = rig.write(packed(seed=1, q_proj=3))
    artifact_path(tmp_path, other.digest).write_bytes(b"nonsense")
    assert rig.loader.size_of(other) is None


def test_an_adapter_that_no_room_was_set_aside_for_is_not_loaded(tmp_path):
    rig = Rig(tmp_path)
    ref = rig.write(packed(q_proj=3))
    rig.loader.start_load(0, ref)  # its size was not asked for, as if the file had not been there yet
    assert "arrived after its size was looked up" in rig.reports.get(timeout=10)[2]
    assert rig.load(0, ref)[2] is None
    rig.loader.close()


def test_a_refusal_is_reported_as_a_failed_load(rig):
    rig.loader.refuse(AdapterRef("0" * 64, 4), "too large")
    assert rig.reports.get(timeout=10) == (NO_SLOT, "0" * 64, "too large")


def test_what_is_in_host_memory_does_not_queue_behind_what_is_read(tmp_path, monkeypatch):
    rig = Rig(tmp_path)
    hot, cold = rig.write(packed(q_proj=3)), rig.write(packed(seed=1, q_proj=3))
    assert rig.load(0, hot)[2] is None
    rig.loader.unload(0)
    go_on = threading.Event()
    read = rig.pool.read

    def slow(path, digest):
        assert go_on.wait(10)
        return read(path, digest)

    monkeypatch.setattr(rig.pool, "read", slow)
    for slot, ref in enumerate((cold, hot)):
        rig.loader.size_of(ref)
        rig.loader.start_load(slot, ref)
    assert rig.reports.get(timeout=10) == (1, hot.digest, None)
    go_on.set()
    assert rig.reports.get(timeout=10) == (0, cold.digest, None)
    rig.loader.close()


def test_many_readers_load_each_adapter_into_its_slot(tmp_path):
    rig = Rig(tmp_path, num_slots=12, num_readers=3)
    adapters = [packed(dtype="bfloat16", seed=seed, q_proj=2) for seed in range(12)]
    refs = [rig.write(adapter) for adapter in adapters]
    for slot, ref in enumerate(refs):
        rig.loader.size_of(ref)
        rig.loader.start_load(slot, ref)
    reports = [rig.reports.get(timeout=10) for _ in refs]
    assert sorted(reports) == [(slot, ref.digest, None) for slot, ref in enumerate(refs)]
    for slot, adapter in enumerate(adapters):
        assert_holds(rig.pool, slot, adapter)
    rig.loader.close()
    rig.pool.host_cache.check_integrity()


def test_a_slot_table_over_a_device_pool_swaps_adapters_by_bytes(tmp_path):
    """Six adapters of one to three units in four units of memory, one after the other, through every part."""
    unit = DevicePool(CONFIG, 1, 0, 0, "cpu").size_of(packed(dtype="bfloat16", q_proj=2).manifest)
    rig = Rig(tmp_path, num_bytes=4 * unit)
    adapters = [packed(dtype="bfloat16", seed=seed, q_proj=2 + 2 * (seed % 3)) for seed in range(6)]
    refs = [rig.write(adapter) for adapter in adapters]
    slots = SlotTable(4, rig.loader.start_load, rig.loader)
    for turn in range(4):
        for index in (0, 3, 1, 2, 4, 5, 1, 0):
            ref = refs[(index + turn) % 6]
            if slots.ensure_loaded(ref) is SlotState.LOADING:
                slot, digest, error = rig.reports.get(timeout=10)
                assert error is None
                slots.loaded(slot, digest)
            slot = slots.acquire(ref)
            for other in slots.slots:
                if other.ref is None:
                    assert_empty(rig.pool, other.index)
                else:
                    assert_holds(rig.pool, other.index, adapters[refs.index(other.ref)])
            slots.release(slot)
            slots.check_integrity()
            rig.pool.check_integrity()
            assert rig.pool.num_bytes_used == slots.capacity - slots.free.num_bytes
    assert slots.num_evictions > 10
    assert rig.pool.host_cache.num_misses == 6, "read once each"
    rig.loader.close()
