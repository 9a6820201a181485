"""Scores of the base alone, from calibration to calibration: the same bits, or none."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.calibration.samples import Sample
from adapters.calibration.scores import Scores
from adapters.calibration.shared import SharedScores
from tests.adapters.calibration.test_run import Bench, Interrupted, Memory, found, make_bench
from tokenization.codec import TextCodec

SAMPLES = [Sample(line, list(range(line, line + 6)), 2) for line in range(1, 9)]
SCORES = [Scores([-0.1 / sample.line, -1e-300, -2.0, -1 / 3], [3, 4, 5, 6]) for sample in SAMPLES]


def test_what_is_kept_comes_back_bit_by_bit(tmp_path: Path) -> None:
    shared = SharedScores(tmp_path / "folder")
    assert shared.load("one", SAMPLES) is None
    shared.save("one", SCORES)
    assert shared.load("one", SAMPLES) == SCORES
    assert SharedScores(tmp_path / "folder").load("one", SAMPLES) == SCORES
    assert shared.load("other", SAMPLES) is None
    assert len(list((tmp_path / "folder").iterdir())) == 1, "nothing is left lying about"


def _flip(place: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + bytes([data[place] ^ 1]) + data[place:][1:]


@pytest.mark.parametrize(
    "damage",
    [
        _flip(0),
        _flip(31),
        _flip(40),
        _flip(-1),
        lambda data: data[:-1],
        lambda data: data[:10],
        lambda data: b"",
        lambda data: data + b"\0",
    ],
)
def test_a_damaged_file_is_refused_and_removed(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    shared = SharedScores(tmp_path)
    shared.save("one", SCORES)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert shared.load("one", SAMPLES) is None
    assert not path.exists()
    shared.save("one", SCORES)
    assert shared.load("one", SAMPLES) == SCORES


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    shared = SharedScores(tmp_path)
    shared.save("one", SCORES)
    (path,) = tmp_path.iterdir()
    path.rename(path.with_stem("two"))
    assert shared.load("two", SAMPLES) is None
    for wrong in (SAMPLES[:-1], [*SAMPLES[:-1], Sample(9, [1, 2, 3], 1)]):
        shared.save("one", SCORES)
        assert shared.load("one", wrong) is None
    shared.save("one", [Scores([float("nan")] * 4, one.likeliest) for one in SCORES])
    assert shared.load("one", SAMPLES) is None


def test_only_so_much_is_kept_and_what_is_used_stays(tmp_path: Path) -> None:
    one = SharedScores(tmp_path)
    one.save("size", SCORES)
    (path,) = tmp_path.iterdir()
    size = path.stat().st_size
    path.unlink()
    shared = SharedScores(tmp_path, max_bytes=3 * size)
    for number, name in enumerate("abc"):
        shared.save(name, SCORES)
        os.utime(tmp_path / f"{name}.scores", (1e9 + number, 1e9 + number))
    (tmp_path / "b.1234.part").write_bytes(b"cut off")
    os.utime(tmp_path / "b.1234.part", (1e9, 1e9))
    assert shared.load("a", SAMPLES) == SCORES
    shared.save("d", SCORES)
    assert {file.name for file in tmp_path.iterdir()} == {"a.scores", "c.scores", "d.scores"}


def test_a_disk_that_takes_nothing_stops_no_calibration(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    shared = SharedScores(tmp_path / "file")
    shared.save("one", SCORES)
    assert shared.load("one", SAMPLES) is None


# In a calibration -----------------------------------------------------------------------------------------


def sharing(bench: Bench, folder: Path) -> Bench:
    return replace(bench, stack=replace(bench.stack, shared=SharedScores(folder)))


def asked_without(bench: Bench) -> int:
    """Samples for which the engine was asked for the base alone."""
    return sum(submit.adapter is None for submit in bench.engine.submits)


async def test_a_second_adapter_on_the_same_samples_pays_for_itself_alone(
    tmp_path: Path, sapling_codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is found to be what it is found to be without the first; whatever happens to what was kept."""
    alone = found(await make_bench(tmp_path / "alone", sapling_codec, num_samples=6).run())
    first = sharing(make_bench(tmp_path / "one", sapling_codec, num_samples=6), tmp_path / "shared")
    assert found(await first.run()) == alone
    assert asked_without(first) == 6
    kept = sorted((tmp_path / "shared").iterdir())
    assert len(kept) == 2

    second = sharing(make_bench(tmp_path / "two", sapling_codec, num_samples=6), tmp_path / "shared")
    streams: list[set[str]] = []
    monkeypatch.setattr("adapters.calibration.run.Reference", _watched(streams))
    assert found(await second.run()) == alone
    assert asked_without(second) == 0
    assert streams == [{"adapter", "doubled"}]

    for path in kept:
        path.write_bytes(path.read_bytes()[:-1] + b"\1")
    third = sharing(make_bench(tmp_path / "three", sapling_codec, num_samples=6), tmp_path / "shared")
    assert found(await third.run()) == alone
    assert asked_without(third) == 6
    assert streams[1] == {"base", "adapter", "doubled"}
    assert [path.exists() for path in kept] == [True, True], "made again"


def _watched(streams: list[set[str]]) -> Callable[..., object]:
    from adapters.calibration.reference import Reference

    def make(*arguments: object, **options: object) -> Reference:
        reference = Reference(*arguments, **options)  # type: ignore[arg-type]
        streams.append(set(reference._streams))
        return reference

    return make


async def test_of_other_samples_bases_and_tenants_nothing_is_taken(
    tmp_path: Path, sapling_codec: TextCodec
) -> None:
    folder = tmp_path / "shared"
    first = sharing(make_bench(tmp_path / "one", sapling_codec, num_samples=4), folder)
    await first.run()
    asker = replace(first.request.asker, tenant="ten_two")
    neighbour = replace(first, request=replace(first.request, asker=asker))
    others = {
        "samples": sharing(make_bench(tmp_path / "two", sapling_codec, num_samples=5), folder),
        "quantisation": sharing(
            make_bench(tmp_path / "three", sapling_codec, num_samples=4, quantization="none"), folder
        ),
        "tenant": replace(neighbour, engine=first.engine),
    }
    for name, other in others.items():
        before = asked_without(other)
        await other.run()
        assert asked_without(other) > before, name


async def test_what_was_saved_while_the_base_was_known_is_not_enough_without(
    tmp_path: Path, sapling_codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that was interrupted goes on after the directory was emptied."""
    folder = tmp_path / "shared"
    bench = sharing(make_bench(tmp_path / "one", sapling_codec, num_samples=6), folder)
    wanted = found(await bench.run())
    memory = Memory(interrupt_at=("report", 0, 1))
    with pytest.raises(Interrupted):
        await bench.run(memory)
    assert any(name.startswith("reference") for name in memory.parts)
    for path in folder.iterdir():
        path.unlink()
    memory.interrupt_at = None
    assert found(await bench.run(memory)) == wanted
