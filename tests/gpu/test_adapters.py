"""Adapters come, go and move while steps run: no step sees half of one, or another's, and none waits."""

from __future__ import annotations

import threading
import time
from random import Random

import pytest
import torch
from torch import Tensor

from engine.lora.artifact import GROUPS, Dtype, PackedAdapter
from engine.lora.device_pool import DevicePool
from engine.lora.image import image_bytes
from engine.lora.ranges import rounded
from kernels.lora.table import A
from tests.engine.lora.adapters import CONFIG, assert_empty, assert_holds, packed

pytestmark = pytest.mark.gpu

LINEARS = [name for names in GROUPS.values() for name in names]
WORDS = 64
"""Bytes that a step of these tests reads."""
LONG_CYCLES = 400_000_000
"""Of a kernel that only waits: about 0.2 s."""


def make(device: torch.device, num_slots: int = 4, num_bytes: int = 1 << 20, **settings: int) -> DevicePool:
    pool = DevicePool(CONFIG, num_slots, num_bytes, 4 << 20, device, **settings)
    pool.lock_host_memory()
    warm = packed(dtype="bfloat16", seed=99, q_proj=1)
    # Kernels are loaded when first used, and loading waits for all that runs.
    for wait in (False, True):
        load(pool, 0, warm)
        launch_read(pool, 0, wait=wait)
        pool.idle(0)
        pool.unload(0)
        launch_read(pool, 0, wait=wait)
    torch.cuda.synchronize()
    return pool


def size_of(adapter: PackedAdapter) -> int:
    return rounded(image_bytes(adapter.manifest))


def load(pool: DevicePool, slot: int, adapter: PackedAdapter) -> None:
    pool.load(slot, pool.adopt(adapter))


def launch_read(pool: DevicePool, slot: int, *, wait: bool) -> tuple[Tensor, torch.cuda.Event]:
    """A step that reads the slot's first words where the table says, perhaps long after its launch."""
    with pool.launching():
        if wait:
            torch.cuda._sleep(LONG_CYCLES)
        places = torch.arange(WORDS, device=pool.table.arena.device) + pool.table.offsets[0, 0, slot, A]
        found = pool.table.arena[places]
        end = torch.cuda.Event()
        end.record()
    return found, end


def first_words(adapter: PackedAdapter) -> Tensor:
    words = adapter.a(0, "qkv").tobytes()[:WORDS]
    assert len(words) == WORDS
    return torch.frombuffer(bytearray(words), dtype=torch.uint8)


def test_host_memory_is_page_locked(device: torch.device) -> None:
    pool = make(device)
    image = pool.adopt(packed(dtype="bfloat16", q_proj=2))
    assert image.bytes.is_pinned()
    pool.drop(image)
    pool.close()


def test_a_load_waits_for_no_step_that_does_not_concern_it(device: torch.device) -> None:
    pool = make(device)
    adapters = [packed(dtype="bfloat16", seed=seed, q_proj=4) for seed in range(2)]
    load(pool, 1, adapters[0])
    found, end = launch_read(pool, 1, wait=True)
    load(pool, 2, adapters[1])
    assert not end.query(), "the load came after the step, or the step waited for it"
    torch.cuda.synchronize()
    assert torch.equal(found.cpu(), first_words(adapters[0]))
    assert_holds(pool, 2, adapters[1])
    pool.close()


def test_a_launch_does_not_wait_for_loads(device: torch.device) -> None:
    pool = make(device, num_bytes=256 << 20)
    image = torch.zeros(64 << 20, dtype=torch.uint8).pin_memory()
    target = pool.table.arena[: len(image)]
    stop = threading.Event()

    def copy() -> None:
        while not stop.is_set():
            pool._transfers.upload(image, target)

    load(pool, 1, packed(dtype="bfloat16", q_proj=4))
    launch_read(pool, 1, wait=False)
    torch.cuda.synchronize()
    copying = threading.Thread(target=copy)
    copying.start()
    try:
        times = []
        for _ in range(50):
            began = time.perf_counter()
            _, end = launch_read(pool, 1, wait=False)
            end.synchronize()
            times.append(time.perf_counter() - began)
    finally:
        stop.set()
        copying.join()
    assert sorted(times)[25] < 0.005, "a step of microseconds waits for a load of milliseconds"
    pool.close()


def test_bytes_that_a_launched_step_reads_are_not_overwritten(device: torch.device) -> None:
    old, new = (packed(dtype="bfloat16", seed=seed, q_proj=4) for seed in range(2))
    pool = make(device, num_bytes=size_of(old))
    load(pool, 1, old)
    found, end = launch_read(pool, 1, wait=True)
    pool.idle(1)
    pool.unload(1)
    load(pool, 1, new)
    assert end.query(), "the load did not wait for the step"
    later, _ = launch_read(pool, 1, wait=False)
    assert torch.equal(found.cpu(), first_words(old))
    assert torch.equal(later.cpu(), first_words(new))
    assert_holds(pool, 1, new)
    pool.close()


def test_a_slot_never_called_idle_is_treated_as_if_in_use(device: torch.device) -> None:
    old, new = (packed(dtype="bfloat16", seed=seed, q_proj=4) for seed in range(2))
    pool = make(device, num_bytes=size_of(old))
    load(pool, 1, old)
    found, _ = launch_read(pool, 1, wait=True)
    pool.unload(1)
    load(pool, 2, new)
    assert torch.equal(found.cpu(), first_words(old))
    assert_holds(pool, 2, new)
    pool.close()


def test_a_slot_idle_for_long_gives_its_bytes_at_once(device: torch.device) -> None:
    """The steps that run now were launched after it fell idle: they are not waited for."""
    old, other, new = (packed(dtype="bfloat16", seed=seed, q_proj=4) for seed in range(3))
    size = size_of(old)
    pool = make(device, num_bytes=2 * size)
    load(pool, 1, old)
    load(pool, 2, other)
    launch_read(pool, 1, wait=False)[1].synchronize()
    pool.idle(1)
    found, end = launch_read(pool, 2, wait=True)
    pool.unload(1)
    load(pool, 3, new)
    assert not end.query()
    assert torch.equal(found.cpu(), first_words(other))
    assert_holds(pool, 3, new)
    pool.close()


def test_a_step_sees_an_adapter_before_its_move_or_after(device: torch.device) -> None:
    small = [packed(dtype="bfloat16", seed=seed, q_proj=4) for seed in range(3)]
    large = packed(dtype="bfloat16", seed=9, q_proj=4, k_proj=4, v_proj=3)
    size = size_of(small[0])
    assert size < size_of(large) <= 2 * size
    pool = make(device, num_bytes=3 * size)
    for slot, adapter in enumerate(small):
        load(pool, slot, adapter)
    before, _ = launch_read(pool, 1, wait=True)
    for slot in (0, 2):
        pool.idle(slot)
        pool.unload(slot)
    load(pool, 3, large)
    assert pool.num_moves == 1
    after, _ = launch_read(pool, 1, wait=False)
    assert torch.equal(before.cpu(), first_words(small[1]))
    assert torch.equal(after.cpu(), first_words(small[1]))
    assert_holds(pool, 1, small[1])
    assert_holds(pool, 3, large)
    pool.check_integrity()
    pool.close()


@pytest.mark.parametrize("seed", range(3))
def test_any_mix_of_loads_and_moves_under_running_steps(device: torch.device, seed: int) -> None:
    """Steps read every slot through the table all the time, while another thread loads and evicts."""
    pool = make(device, num_slots=8, num_bytes=30_000)
    pool.moved_bytes = 10_000
    random = Random(seed)
    held: dict[int, PackedAdapter] = {}
    lock = threading.Lock()
    stop = threading.Event()
    failures: list[str] = []

    def step_all() -> None:
        while not stop.is_set():
            with lock:  # which slots are in use changes between steps only
                reads = [(held[slot], launch_read(pool, slot, wait=False)[0]) for slot in held]
            for adapter, found in reads:
                if not torch.equal(found.cpu(), first_words(adapter)):
                    failures.append("a step read other words than its adapter's")

    stepping = threading.Thread(target=step_all)
    stepping.start()
    try:
        for number in range(120):
            slot = random.randrange(8)
            if slot in held:
                with lock:
                    del held[slot]
                pool.idle(slot)
                pool.unload(slot)
                continue
            ranks = {name: random.randint(1, 8) for name in random.sample(LINEARS, random.randint(1, 7))}
            ranks["q_proj"] = random.randint(2, 8)
            dtype: Dtype = random.choice(["bfloat16", "float8_e4m3"])
            adapter = packed(dtype=dtype, seed=number, **ranks)
            if pool.size_of(adapter.manifest) <= pool.capacity - pool.num_bytes_used:
                load(pool, slot, adapter)
                with lock:
                    held[slot] = adapter
    finally:
        stop.set()
        stepping.join()
    torch.cuda.synchronize()
    assert not failures
    for slot in range(8):
        if slot in held:
            assert_holds(pool, slot, held[slot])
        else:
            assert_empty(pool, slot)
    pool.check_integrity()
    assert pool.num_moves > 0, "nothing was moved: the test does not test"
    pool.close()
