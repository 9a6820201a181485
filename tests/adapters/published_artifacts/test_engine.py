"""A whole engine without a folder of packed adapters: each comes by digest when a request names it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from adapters.packing import pack
from adapters.published_artifacts.cache import ArtifactCache
from adapters.published_artifacts.fetcher import StoreFetcher
from adapters.published_artifacts.publishing import publish_folder, published_key
from adapters.storage import LocalStore
from benchmarks.random_llama import Shape, write_adapter, write_base
from cli.draft_adapters import pack_drafter
from engine.assembly import build_engine
from engine.core import EngineCore
from engine.lora.artifact import artifact_path
from engine.lora.draft_adapters import encode_note, write_note
from engine.model.config import load_config
from engine.model.weights import base_digest
from engine.protocol import AdapterRef, Rejected, SamplingParams, Submit
from engine.settings import DeviceSettings, EngineSettings, SchedulingSettings
from tests.engine.runner.bases import write_draft_adapter
from tests.support.waiting import until

if TYPE_CHECKING:
    from engine.server import EngineServer

SHAPE = Shape(num_layers=2, hidden=64, num_heads=4, num_kv_heads=2, intermediate=128, vocab=512)
SAMPLING = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)


class Server:
    """What an engine's parts need of its server."""

    engine_id = "engine-0"
    incarnation = "first"
    core: EngineCore

    def __init__(self) -> None:
        self.closing: list[Callable[[], None]] = []

    def adapter_loaded(self, slot: int, digest: str, error: str | None) -> None:
        self.core.adapter_loaded(slot, digest, error)

    def wake(self) -> None:
        pass

    def at_close(self, close: Callable[[], None]) -> None:
        self.closing.append(close)


@contextmanager
def engine(
    base: Path, folder: Path, fetcher: StoreFetcher | None = None, **scheduling: Any
) -> Iterator[EngineCore]:
    server = Server()
    chosen = SchedulingSettings(**scheduling)
    settings = EngineSettings(base=base, artifacts_dir=folder, scheduling=chosen)
    device = DeviceSettings(device="cpu", num_slots=2, num_blocks=64)
    server.core, _ = build_engine(settings, device, cast("EngineServer", server), "test", fetcher)
    try:
        yield server.core
    finally:
        for close in server.closing:
            close()


def answer(
    core: EngineCore, name: str, ref: AdapterRef | None, sampling: SamplingParams = SAMPLING
) -> list[int] | Rejected:
    """Returns the tokens, or why there are none."""
    core.submit(Submit(name, "acme", [5, 6, 7, 8], sampling, adapter=ref, submitted_at=1.0))
    tokens: list[int] = []
    while True:
        until(lambda: core.has_work, 30, "work")
        outputs = core.step()
        tokens += [token for chunk in outputs.chunks for token in chunk.token_ids]
        if outputs.rejected:
            return outputs.rejected[0]
        if outputs.finished:
            return tokens


@pytest.fixture
def packed(tmp_path: Path) -> list[AdapterRef]:
    """Three adapters in `tmp_path/shared`, for the base in `tmp_path/base`."""
    write_base(tmp_path / "base", SHAPE)
    config, digest = load_config(tmp_path / "base"), base_digest(tmp_path / "base")
    refs = []
    for number in range(3):
        write_adapter(tmp_path / f"peft-{number}", SHAPE, rank=8, seed=number)
        refs.append(pack(tmp_path / f"peft-{number}", config, digest, tmp_path / "shared"))
    return refs


def test_fetched_adapters_answer_like_those_of_a_shared_folder(
    packed: list[AdapterRef], tmp_path: Path
) -> None:
    base, shared = tmp_path / "base", tmp_path / "shared"
    store = LocalStore(tmp_path / "store")
    asyncio.run(publish_folder(store, shared))
    with engine(base, shared) as core:
        expected = [answer(core, f"r{number}", ref) for number, ref in enumerate(packed)]
        assert core.stats.adapter_fetches == 0
    assert len({tuple(cast("list[int]", tokens)) for tokens in expected}) == 3
    size = max(path.stat().st_size for path in shared.rglob("*.rsa"))
    cache = ArtifactCache(tmp_path / "cache", store, 2 * size)  # of three
    with engine(base, cache.root, StoreFetcher(cache)) as core:
        for turn in range(2):
            assert [answer(core, f"{turn}-{number}", ref) for number, ref in enumerate(packed)] == expected
        stats = core.stats
        assert (stats.adapters_fetching, stats.adapter_fetches) == (0, 6), "two slots, and two files"
        assert stats.adapter_fetch_bytes > 5 * size - 6
        core.check_integrity()


def test_draft_adapters_are_fetched_and_guess_for_base_and_adapters(
    packed: list[AdapterRef], tmp_path: Path
) -> None:
    base, shared, store = tmp_path / "base", tmp_path / "shared", LocalStore(tmp_path / "store")
    digest = base_digest(base)
    of_base, own = (
        pack_drafter(write_draft_adapter(base, tmp_path / f"draft-{seed}", seed), base, digest, shared)
        for seed in (1, 2)
    )
    write_note(shared, packed[0].digest, own)
    asyncio.run(publish_folder(store, shared))
    long = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    note = encode_note(of_base).decode()
    for name, ref, drafter in (("base", None, of_base), ("adapter", packed[0], own)):
        with engine(base, shared) as core:
            expected = answer(core, name, ref, long)
        cache = ArtifactCache(tmp_path / f"cache-{name}", store, 1 << 30, with_notes=True)
        with engine(base, cache.root, StoreFetcher(cache), speculation=True, packed_drafter=note) as core:
            assert answer(core, "first", ref, long) == expected
            until(artifact_path(cache.root, drafter.ref.digest).exists, 30, "the draft adapter")
            for turn in range(3):
                assert answer(core, f"{turn}", ref, long) == expected
            core.check_integrity()


def test_a_request_ends_with_what_failed_and_the_next_one_is_served(
    packed: list[AdapterRef], tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "store")
    asyncio.run(publish_folder(store, tmp_path / "shared"))
    ref, decayed, _ = packed
    damaged = tmp_path / "store" / published_key(ref.digest)
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-60] + bytes([whole[-60] ^ 1]) + whole[-59:])
    cache = ArtifactCache(tmp_path / "cache", store, 1 << 30)
    with engine(tmp_path / "base", cache.root, StoreFetcher(cache)) as core:
        refused = answer(core, "damaged", ref)
        assert isinstance(refused, Rejected)
        assert refused.code == "adapter_unavailable"
        assert f"the object store's packed adapter {ref.digest} has the SHA-256" in refused.message
        damaged.write_bytes(whole)
        assert isinstance(answer(core, "repaired", ref), list)
        missing = answer(core, "missing", AdapterRef("0" * 64, 8))
        assert isinstance(missing, Rejected)
        assert "the object store has no packed adapter" in missing.message
        assert core.stats.adapter_fetch_failures == {"damaged": 1, "missing": 1}

        copy = cache.root / decayed.digest[:2] / f"{decayed.digest}.rsa"
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(b"decayed")
        refused = answer(core, "decayed", decayed)
        assert isinstance(refused, Rejected)
        assert "magic: not a packed adapter" in refused.message
        until(lambda: not copy.exists(), 30, "the decayed copy is gone")
        assert isinstance(answer(core, "again", decayed), list)
