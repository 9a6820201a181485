"""The packed layout: what is written is what is read, and nothing damaged or foreign gets in."""

import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.lora.artifact import (
    ALIGNMENT,
    GROUPS,
    STORAGE,
    ArtifactError,
    LoraPair,
    PackedAdapter,
    artifact_path,
    read_manifest,
)
from engine.model import config as model_config

PREFIX = struct.Struct("<8sII")
OLD_DIGEST = "703e6d212ad55f3530334ade94290444abef9bcf3f60f525a47b5abab384febe"


def random_pair(
    rng: np.random.Generator, dtype: str, rank: int, k: int, n: int, scale: float = 0.5
) -> LoraPair:
    if dtype == "float32":
        return LoraPair(rng.standard_normal((rank, k), "f4"), rng.standard_normal((rank, n), "f4"), scale)
    if dtype == "float8_e4m3":
        a, b = (rng.integers(0, 127, (rank, width)).astype("u1") for width in (k, n))
        a_scale, b_scale = rng.uniform(1e-3, 1, (2, rank)).astype("f4")
        return LoraPair(a, b, scale, a_scale, b_scale)
    a, b = (rng.integers(0, 1 << 14, (rank, width)).astype("<u2") for width in (k, n))
    return LoraPair(a, b, scale)


def build(dtype: str = "bfloat16") -> tuple[PackedAdapter, list[dict[str, LoraPair]]]:
    rng = np.random.default_rng(0)
    layers = [
        {
            "v_proj": random_pair(rng, dtype, 3, 10, 7, 2.0),
            "q_proj": random_pair(rng, dtype, 5, 10, 12),
            "down_proj": random_pair(rng, dtype, 1, 20, 10),
        },
        {},
        {"o_proj": random_pair(rng, dtype, 4, 12, 10, 1 / 3), "up_proj": random_pair(rng, dtype, 2, 10, 20)},
    ]
    return PackedAdapter.build(layers, "b" * 64, dtype), layers


def rewrite(path: Path, change) -> None:
    """Change the manifest of a written artifact, keeping the rest."""
    data = path.read_bytes()
    magic, version, length = PREFIX.unpack_from(data)
    manifest = json.loads(data[PREFIX.size : PREFIX.size + length])
    start = -(-(PREFIX.size + length) // ALIGNMENT) * ALIGNMENT
    change(manifest)
    text = json.dumps(manifest, separators=(",", ":")).encode()
    header = PREFIX.pack(magic, version, len(text)) + text
    path.write_bytes(header + bytes(-len(header) % ALIGNMENT) + data[start:])


@pytest.mark.parametrize("dtype", list(STORAGE))
def test_round_trip(tmp_path, dtype):
    packed, layers = build(dtype)
    path = artifact_path(tmp_path, packed.digest)
    packed.write(path)
    assert path == tmp_path / packed.digest[:2] / f"{packed.digest}.rsa"
    read = PackedAdapter.read(path, packed.digest)
    assert read.manifest == packed.manifest == read_manifest(path)
    assert read.slab.dtype == STORAGE[dtype]
    assert read.manifest.rank == 5
    assert [list(layer) for layer in read.manifest.layers] == [["qkv", "down"], [], ["o", "gate_up"]]
    np.testing.assert_array_equal(
        read.a(0, "qkv"), np.concatenate([layers[0]["q_proj"].a, layers[0]["v_proj"].a])
    )
    for index, layer in enumerate(layers):
        for group, modules in GROUPS.items():
            for name in modules:
                if name in layer:
                    np.testing.assert_array_equal(read.b(index, group, name), layer[name].b)
                    scale = read.manifest.layers[index][group].modules[name].scale
                    assert scale == np.float32(layer[name].scale)


def test_the_scales_of_fp8_stand_beside_their_group(tmp_path):
    packed, layers = build("float8_e4m3")
    packed.write(tmp_path / "a.rsa")
    read = PackedAdapter.read(tmp_path / "a.rsa", packed.digest)
    q, v = layers[0]["q_proj"], layers[0]["v_proj"]
    a_scale, b_scale = read.scales(0, "qkv")
    np.testing.assert_array_equal(a_scale, np.concatenate([q.a_scale, v.a_scale]))
    np.testing.assert_array_equal(b_scale, np.concatenate([q.b_scale, v.b_scale]))
    assert all(entry.scales % ALIGNMENT == 0 for _, _, entry in read.groups())
    assert build()[0].manifest.layers[0]["qkv"].scales is None


@pytest.mark.parametrize(("dtype", "version"), [("bfloat16", 1), ("float32", 1), ("float8_e4m3", 2)])
def test_only_what_older_releases_cannot_read_has_a_newer_version(tmp_path, dtype, version):
    packed, _ = build(dtype)
    path = tmp_path / "a.rsa"
    packed.write(path)
    data = path.read_bytes()
    assert PREFIX.unpack_from(data)[1] == version
    path.write_bytes(data[:8] + struct.pack("<I", 3 - version) + data[12:])
    with pytest.raises(ArtifactError, match=f"version: {3 - version}, but {dtype} is written as {version}"):
        PackedAdapter.read(path)


def test_bytes_of_version_1_are_what_they_always_were():
    """Adapters packed by earlier releases keep their digests: they are what the database names them by."""
    rng = np.random.default_rng(2)
    pair = LoraPair(rng.integers(0, 99, (2, 8)).astype("<u2"), rng.integers(0, 99, (2, 4)).astype("<u2"), 0.5)
    packed = PackedAdapter.build([{"o_proj": pair}], "b" * 64, "bfloat16")
    assert packed.digest == OLD_DIGEST


def test_a_slab_is_read_to_where_it_is_told(tmp_path):
    packed, _ = build()
    packed.write(tmp_path / "a.rsa")
    memory = np.full(packed.manifest.num_bytes + 100, 7, np.uint8)
    asked = []
    read = PackedAdapter.read(
        tmp_path / "a.rsa", packed.digest, lambda manifest: asked.append(manifest) or memory
    )
    assert asked == [packed.manifest]
    assert np.shares_memory(read.slab, memory)
    np.testing.assert_array_equal(read.slab, packed.slab)
    assert (memory[packed.manifest.num_bytes :] == 7).all()


def test_every_matrix_is_aligned_and_the_digest_is_that_of_the_file(tmp_path):
    packed, _ = build()
    path = tmp_path / "a.rsa"
    packed.write(path)
    data = path.read_bytes()
    start = len(data) - packed.manifest.num_bytes
    assert start % ALIGNMENT == 0
    for layer in packed.manifest.layers:
        for group in layer.values():
            assert group.offset * 2 % ALIGNMENT == 0
            assert all(module.offset * 2 % ALIGNMENT == 0 for module in group.modules.values())
    assert hashlib.sha256(data).hexdigest() == packed.digest


def test_equal_content_has_equal_bytes():
    assert build()[0].digest == build()[0].digest
    rng = np.random.default_rng(1)
    other = PackedAdapter.build([{"q_proj": random_pair(rng, "float32", 2, 4, 4)}], "b" * 64, "float32")
    assert other.digest != PackedAdapter(other.manifest, other.slab + np.float32(1)).digest


def test_groups_are_those_of_the_model():
    assert model_config.GROUPS == GROUPS


def q_proj(**changes):
    """A change to the first module of the manifest."""
    return lambda m: m["layers"][0]["qkv"]["modules"]["q_proj"].update(changes)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("manifest", lambda m: m.update(dtype="float16")),
        ("manifest", lambda m: m.update(surprise=1)),
        ("manifest", lambda m: m.pop("base_digest")),
        ("manifest", q_proj(scale=None)),
        ("num_elements", lambda m: m.update(num_elements=m["num_elements"] + 32)),
        ("layers", lambda m: m.update(layers=[])),
        ("layers", lambda m: m.update(layers=[{}, {}], num_elements=0)),
        ("layers[0]", lambda m: m["layers"][0].update(gate=m["layers"][0].pop("qkv"))),
        ("layers[0]", lambda m: m["layers"][0].update(qkv=m["layers"][0].pop("qkv"))),
        ("layers[0].qkv.modules", lambda m: m["layers"][0]["qkv"].update(modules={})),
        (
            "layers[0].qkv.modules",
            lambda m: m["layers"][0]["qkv"]["modules"].update(m["layers"][2]["o"]["modules"]),
        ),
        ("layers[0].qkv.in_features", lambda m: m["layers"][0]["qkv"].update(in_features=0)),
        ("layers[0].qkv.offset", lambda m: m["layers"][0]["qkv"].update(offset=32)),
        ("layers[0].qkv.q_proj.offset", q_proj(offset=1 << 60)),
        ("layers[0].qkv.q_proj.offset", q_proj(offset=-1)),
        ("layers[0].qkv.q_proj.rank", q_proj(rank=0)),
        ("layers[0].qkv.q_proj.rank", q_proj(rank=1 << 40)),
        ("layers[0].qkv.q_proj.out_features", q_proj(out_features=-3)),
        ("layers[0].qkv.q_proj.scale", q_proj(scale=0.1)),
        ("layers[0].qkv.q_proj.scale", q_proj(scale=1e300)),
        ("layers[2].o.o_proj.offset", lambda m: m["layers"][2]["o"]["modules"]["o_proj"].update(rank=7)),
    ],
)
def test_a_wrong_manifest_is_refused_by_name(tmp_path, field, change):
    packed, _ = build()
    path = tmp_path / "a.rsa"
    packed.write(path)
    rewrite(path, change)
    with pytest.raises(ArtifactError) as caught:
        PackedAdapter.read(path)
    assert caught.value.field == field
    assert str(caught.value).startswith(field)


@pytest.mark.parametrize(
    ("dtype", "change", "reason"),
    [
        ("bfloat16", lambda m: m["layers"][0]["qkv"].update(scales=64), "bfloat16 has none"),
        ("float8_e4m3", lambda m: m["layers"][0]["qkv"].pop("scales"), "float8_e4m3 needs them"),
        ("float8_e4m3", lambda m: m["layers"][0]["qkv"].update(scales=0), "the layout puts it at"),
        ("float8_e4m3", lambda m: m["layers"][0]["qkv"].update(scales="here"), "Expected `int"),
    ],
)
def test_scales_where_they_do_not_belong_are_refused(tmp_path, dtype, change, reason):
    packed, _ = build(dtype)
    path = tmp_path / "a.rsa"
    packed.write(path)
    rewrite(path, change)
    with pytest.raises(ArtifactError, match=reason):
        PackedAdapter.read(path)


def test_an_unchanged_rewrite_still_reads(tmp_path):
    """The test above changes what it says it changes: the same path without a change is accepted."""
    packed, _ = build()
    packed.write(tmp_path / "a.rsa")
    rewrite(tmp_path / "a.rsa", lambda manifest: None)
    assert PackedAdapter.read(tmp_path / "a.rsa").digest == packed.digest


def test_a_second_spelling_of_a_manifest_is_refused(tmp_path):
    packed, _ = build()
    path = tmp_path / "a.rsa"
    packed.write(path)
    data = path.read_bytes()
    magic, version, length = PREFIX.unpack_from(data)
    text = b" " + data[PREFIX.size : PREFIX.size + length]
    header = PREFIX.pack(magic, version, len(text)) + text
    path.write_bytes(header + bytes(-len(header) % ALIGNMENT) + data[-packed.manifest.num_bytes :])
    with pytest.raises(ArtifactError, match="canonical"):
        PackedAdapter.read(path)


@pytest.mark.parametrize(
    ("field", "damage"),
    [
        ("magic", lambda data: b""),
        ("magic", lambda data: b"PK" + data[2:]),
        ("version", lambda data: data[:8] + struct.pack("<I", 2) + data[12:]),
        ("version", lambda data: data[:8] + struct.pack("<I", 3) + data[12:]),
        ("manifest", lambda data: data[:12] + struct.pack("<I", 1 << 31) + data[16:]),
        ("manifest", lambda data: data[:40]),
        ("manifest", lambda data: data[:16] + b"\xff" * 8 + data[24:]),
        ("size", lambda data: data[:-1]),
        ("size", lambda data: data + b"\0"),
        ("digest", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, field, damage):
    packed, _ = build()
    path = tmp_path / "a.rsa"
    packed.write(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ArtifactError) as caught:
        PackedAdapter.read(path, packed.digest)
    assert caught.value.field == field


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        PackedAdapter.read(tmp_path / "a.rsa")


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    packed, _ = build()
    path = tmp_path / "a.rsa"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        packed.write(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_reading_an_artifact_loads_no_torch():
    code = "import sys, engine.lora.artifact; print(sorted({'torch', 'triton', 'peft'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


FIRST_READS = """
import sys, threading, time
from pathlib import Path
from engine.lora.artifact import read_manifest

def pause(frame, event, argument):
    if event == "call" and "msgspec" in frame.f_code.co_filename:
        time.sleep(0.01)  # another thread's turn

threading.setprofile(pause)
threads = [threading.Thread(target=read_manifest, args=(Path(sys.argv[1]),)) for _ in range(50)]
for thread in threads:
    thread.start()
    time.sleep(0.004)
for thread in threads:
    thread.join()
"""


def test_threads_may_read_the_first_manifests_of_a_process_at_once(tmp_path: Path) -> None:
    """msgspec crashes a process in which two threads make the first decoder of a type at once."""
    packed, _ = build()
    packed.write(tmp_path / "a.rsa")
    command = [sys.executable, "-c", FIRST_READS, str(tmp_path / "a.rsa")]
    assert subprocess.run(command, timeout=60).returncode == 0
