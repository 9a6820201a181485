"""Files of weights that must be refused: lies in the header, in names, in shapes and in values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from tests.adapters.inspection.damage import (
    LAST,
    WEIGHTS,
    A,
    B,
    HostileCase,
    V,
    added,
    another_base,
    config,
    entry,
    header_text,
    renamed,
    reshaped,
    setting,
    value,
    without,
)
from tests.adapters.inspection.uploads import Upload, key


def _lengths() -> Iterator[HostileCase]:
    for name, length in {
        "zero": 0, "one": 1, "of-the-data-too": 1 << 18, "four-gigabytes": 1 << 32,
        "a-hundred-megabytes": 100_000_000,
        "two-to-the-63": 1 << 63, "minus-one": (1 << 64) - 1, "just-past-the-cap": (1 << 20) + 1,
    }.items():  # fmt: skip
        yield HostileCase(f"length-{name}", WEIGHTS, setting(length=length))
    yield HostileCase(
        "length-one-short",
        WEIGHTS,
        lambda u: setattr(u, "length", len(json.dumps(u.header)) - 1),
    )
    yield HostileCase(
        "length-one-long", WEIGHTS, lambda u: setattr(u, "length", len(json.dumps(u.header)) + 1)
    )
    yield HostileCase("header-of-two-megabytes", WEIGHTS, header_text(lambda t: t + b" " * (2 << 20)))
    for name, raw in {
        "empty": b"", "three-bytes": b"abc", "eight-zeros": bytes(8), "zeros": bytes(4096),
        "ones": b"\xff" * 4096,
        "zip": b"PK\x03\x04" + bytes(400), "pickle-2": b"\x80\x02}q\x00." + bytes(400),
        "pickle-4": b"\x80\x04\x95" + bytes(400), "gzip": b"\x1f\x8b\x08" + bytes(400),
        "gguf": b"GGUF\x03" + bytes(400), "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(400),
        "elf": b"\x7fELF\x02\x01\x01" + bytes(400), "html": b"<!doctype html><script>alert(1)</script>",
        "json": b'{"peft_type": "LORA"}', "lfs-pointer": b"version https://git-lfs.github.com/spec/v1\n",
    }.items():  # fmt: skip
        yield HostileCase(f"file-{name}", WEIGHTS, setting(weights=raw))


def _header_texts() -> Iterator[HostileCase]:
    for name, raw in {
        "not-json": b"{safetensors}", "array": b"[]   ", "string": b'"{}"', "null": b"null",
        "number": b"12345678",
        "two-objects": b"{}{}", "bom": b"\xef\xbb\xbf{}", "single-quotes": b"{'a': 1}", "comment": b"{/* */}",
        "unclosed": b'{"a": {"dtype": "F32"', "nul-padded": b"{}\0\0\0\0", "latin-1": b'{"\xe9": 1}',
        "control": b'{"a\n": 1}', "digits": b'{"a": ' + b"9" * 5000 + b"}",
        "deep-lists": b'{"a": ' + b"[" * 100_000, "deep-objects": b'{"a":' * 100_000,
    }.items():  # fmt: skip
        yield HostileCase(f"header-{name}", WEIGHTS, setting(header=raw, data=b""))
    yield HostileCase("header-utf-16", WEIGHTS, header_text(lambda t: t.decode().encode("utf-16")))
    yield HostileCase("header-leading-space", WEIGHTS, header_text(lambda t: b" " + t))
    yield HostileCase("header-trailing-comma", WEIGHTS, header_text(lambda t: t[:-1] + b",}"))
    yield HostileCase(
        "header-nan", WEIGHTS, header_text(lambda t: t.replace(b"[0, 2048]", b"[NaN, 2048]", 1))
    )
    yield HostileCase(
        "header-infinity", WEIGHTS, header_text(lambda t: t.replace(b"[0, 2048]", b"[0, Infinity]", 1))
    )
    yield HostileCase(
        "header-overflowing-number", A, header_text(lambda t: t.replace(b"[0, 2048]", b"[0, 1e999]", 1))
    )
    yield HostileCase("header-half-a-pair", WEIGHTS, header_text(lambda t: t[:-1] + b', "\\ud800": 1}'))
    twice = f', "{A}": {{"dtype": "BF16", "shape": [4, 256], "data_offsets": [0, 2048]}}}}'.encode()
    yield HostileCase("tensor-twice", A, header_text(lambda t: t[:-1] + twice))
    yield HostileCase(
        "metadata-twice", "__metadata__", header_text(lambda t: t[:-1] + b', "__metadata__": {}}')
    )
    for part, again in {"dtype": b'"F32"', "shape": b"[4, 256]", "data_offsets": b"[0, 0]"}.items():
        told = f'"{part}": '.encode()
        yield HostileCase(
            f"{part}-twice", A, header_text(lambda t, d=told, a=again: t.replace(d, d + a + b", " + d, 1))
        )


def _metadata() -> Iterator[HostileCase]:
    for name, told in {
        "list": ["pt"], "null": None, "string": "pt", "number-inside": {"format": 1},
        "object-inside": {"a": {}},
        "null-inside": {"format": None}, "tensor": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
    }.items():  # fmt: skip
        yield HostileCase(
            f"metadata-{name}", "__metadata__", lambda u, t=told: u.header.update(__metadata__=t)
        )


def _counts() -> Iterator[HostileCase]:
    def many(upload: Upload, count: int) -> None:
        text = ",".join(f'"t{i}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' for i in range(count))
        upload.header, upload.data = b"{%s}" % text.encode(), bytes(4)

    def small(upload: Upload) -> None:
        upload.header, upload.data = {}, b""
        for index in range(2048):
            upload.add(f"t{index}", "BF16", (1,))

    def spelt_otherwise(upload: Upload) -> None:
        many(upload, 3000)
        assert isinstance(upload.header, bytes)
        upload.header = upload.header.replace(b"data_offsets", b"data\\u005foffsets")

    yield HostileCase("a-million-tensors", WEIGHTS, lambda u: many(u, 1_000_000))
    yield HostileCase("ten-thousand-tensors", WEIGHTS, lambda u: many(u, 10_000))
    yield HostileCase("as-many-tensors-as-may-be", "t0", small)
    yield HostileCase("three-thousand-spelt-otherwise", WEIGHTS, spelt_otherwise)
    yield HostileCase("four-tensors-in-one-place", "t1", lambda u: many(u, 4))
    yield HostileCase("no-tensors", A, setting(header=b"{}", data=b""))


def _dtypes() -> Iterator[HostileCase]:
    for dtype in (
        "F64", "I8", "I32", "I64", "U8", "BOOL", "F8_E4M3", "F4", "C64", "bf16", "BF16 ", "torch.bfloat16",
        "", "é",
        None, 5, True, ["BF16"], {"BF16": 1},
    ):  # fmt: skip
        yield HostileCase(f"dtype-{dtype!r}", A, entry(dtype=dtype))
    yield HostileCase("dtype-wider-than-the-data", A, entry(dtype="F32"))
    yield HostileCase("dtype-narrower-than-the-data", A, entry(dtype="BF16"), dtype="F32")


def _shapes() -> Iterator[HostileCase]:
    for name, shape in {
        "scalar": [], "zero": [0, 256], "minus-one": [-1, 256], "both-negative": [-4, -256],
        "huge": [1 << 62, 256],
        "two-to-the-63": [1 << 63, 1], "googol": [10**100, 256], "wraps-to-the-size": [(1 << 64) + 4, 256],
        "float": [4.0, 256], "text-inside": ["4", 256], "true": [True, 1024], "null-inside": [None, 256],
        "null": None,
        "text": "[4, 256]", "number": 1024, "object": {"0": 4}, "nested": [[4, 256]],
        "sixty-dimensions": [1] * 60,
        "a-hundred-thousand-dimensions": [1] * 100_000, "too-small": [4, 255], "too-large": [5, 256],
        "flat": [1024], "transposed": [256, 4], "three-dimensions": [4, 256, 1], "same-size": [2, 512],
        "rank-one": [1, 1024],
    }.items():  # fmt: skip
        yield HostileCase(f"shape-{name}", A, entry(shape=shape))
    yield HostileCase("shape-missing", A, entry(shape=...))
    yield HostileCase("dtype-missing", A, entry(dtype=...))
    yield HostileCase("offsets-missing", A, entry(data_offsets=...))
    yield HostileCase("part-unknown", A, entry(device="cuda:0"))
    for name, told in {"list": [1], "null": None, "text": "F32", "number": 7, "true": True}.items():
        yield HostileCase(f"tensor-is-{name}", A, lambda u, t=told: u.header.update({A: t}))


def _offsets() -> Iterator[HostileCase]:
    size = 2048  # of every A and B of q_proj
    for name, offsets in {
        "null": None, "number": 0, "one": [0], "three": [0, size, size], "text": "0-2048",
        "text-inside": ["0", "2048"],
        "float": [0.0, 2048.0], "bools": [False, True], "negative": [-size, 0], "reversed": [size, 0],
        "beyond-the-file": [1 << 40, (1 << 40) + size], "two-to-the-63": [1 << 63, (1 << 63) + size],
        "two-to-the-64": [(1 << 64) - size, 1 << 64], "past-the-first": [2, size + 2],
        "too-short": [0, size - 2],
        "too-long": [0, size + 2], "empty": [0, 0], "everything": [0, 1 << 20],
    }.items():  # fmt: skip
        yield HostileCase(f"offsets-{name}", A, entry(data_offsets=offsets))
    yield HostileCase("offsets-overlapping", B, entry(B, data_offsets=[size // 2, size + size // 2]))
    yield HostileCase("offsets-same-twice", B, entry(B, data_offsets=[0, size]))
    yield HostileCase("offsets-hole", B, entry(B, data_offsets=[size + 64, 2 * size + 64]))

    def swapped(upload: Upload) -> None:
        first, second = upload.entry(A), upload.entry(B)
        first["data_offsets"], second["data_offsets"] = second["data_offsets"], first["data_offsets"]

    yield HostileCase("offsets-unordered", A, swapped)
    yield HostileCase("trailing-byte", WEIGHTS, lambda u: setattr(u, "data", u.data + b"\0"))
    yield HostileCase("trailing-archive", WEIGHTS, lambda u: setattr(u, "data", u.data + b"PK\x03\x04" * 999))
    yield HostileCase("cut-by-a-byte", LAST, lambda u: setattr(u, "data", u.data[:-1]))
    yield HostileCase("cut-in-half", key(4), lambda u: setattr(u, "data", u.data[: len(u.data) // 2]))
    yield HostileCase("no-data", A, setting(data=b""))


def _names() -> Iterator[HostileCase]:
    for what, name in {
        "parent": "../../../etc/passwd", "absolute": "/etc/passwd", "windows": "C:\\Windows\\system32",
        "slash": "a/b",
        "dots": "..", "hidden": ".bashrc", "trailing-dot": f"{A}.",
        "empty-part": A.replace(".layers", "..layers"),
        "space": f"{A} ", "markup": "<script>alert(1)</script>", "format": "%s%n{0}",
        "quote": "a';DROP TABLE x--",
    }.items():  # fmt: skip
        yield HostileCase(f"name-{what}", name, renamed(A, name))
    for what, name, shown in (
        ("newline", f"{A}\n", f"{A}\\n"),
        ("nul", f"{A}\0", f"{A}\\x00"),
        ("escape", "\x1b[2J", "\\x1b[2J"),
        ("right-to-left", "\u202egnp.A", "\\u202egnp.A"),
        ("homoglyph", A.replace("lora", "l\u043era"), A.replace("lora", "l\\u043era")),
        ("emoji", "\U0001f600", "\\U0001f600"),
        ("long", "a" * 300, "a" * 197 + "..."),
        ("very-long", "a" * 100_000, "a" * 197 + "..."),
        ("empty", "", WEIGHTS),
    ):
        yield HostileCase(f"name-{what}", shown, renamed(A, name))


def _keys() -> Iterator[HostileCase]:
    for what, name in {
        "unknown-module": A.replace("q_proj", "c_attn"), "not-targeted": A.replace("q_proj", "k_proj"),
        "other-block": A.replace("self_attn", "mlp"), "layer-8": A.replace("layers.0", "layers.8"),
        "layer-minus-1": A.replace("layers.0", "layers.-1"), "layer-00": A.replace("layers.0", "layers.00"),
        "layer-of-many-digits": A.replace("layers.0", f"layers.{'9' * 90}"),
        "no-prefix": A.removeprefix("base_model."),
        "double-prefix": f"base_model.model.{A}", "adapter-name": A.replace("weight", "default.weight"),
        "lora-C": A.replace("lora_A", "lora_C"), "upper-case": A.upper(),
        "not-a-weight": A.replace("weight", "scale"),
        "base-layer": A.replace("lora_A", "base_layer"), "class": "base_model.model.__class__.__init__",
    }.items():  # fmt: skip
        yield HostileCase(f"key-{what}", name, renamed(A, name))
    stem = A.removesuffix(".lora_A.weight")
    for what, name, shape in (
        ("dora", f"{stem}.lora_magnitude_vector", (256,)),
        ("bias", f"{stem}.lora_B.bias", (256,)),
        ("full-weight", f"{stem}.weight", (256, 256)),
        ("embedding", "base_model.model.model.embed_tokens.lora_embedding_A", (4, 4096)),
        ("output-layer", "base_model.model.lm_head.lora_A.weight", (4, 256)),
        ("norm", "base_model.model.model.norm.weight", (256,)),
        ("expert", "base_model.model.model.layers.0.mlp.experts.0.up_proj.lora_A.weight", (4, 256)),
    ):
        yield HostileCase(f"key-added-{what}", name, added(name, shape=shape))
    yield HostileCase("key-missing-A", A, without(A))
    yield HostileCase("key-missing-B", B, without(B))
    yield HostileCase("key-missing-pair", V, without(V, key(module="v_proj", side="B")))
    yield HostileCase(
        "key-missing-layer", key(3), without(*(key(3, m, s) for m in ("q_proj", "v_proj") for s in "AB"))
    )


def _fits() -> Iterator[HostileCase]:
    yield HostileCase("rank-of-A-alone", A, reshaped(A, 8, 256))
    yield HostileCase("rank-of-B-alone", B, reshaped(B, 256, 8))
    yield HostileCase("rank-in-the-config-alone", A, config(r=8))
    yield HostileCase("rank-pattern-alone", key(5), config(rank_pattern={r"layers\.5\.self_attn\.q_proj": 2}))
    yield HostileCase("B-not-transposed", B, reshaped(B, 4, 256))
    yield HostileCase("base-wider", A, another_base(q_proj=(512, 512), v_proj=(256, 512)))
    yield HostileCase("base-of-8b", A, another_base(q_proj=(4096, 4096), v_proj=(1024, 4096)))
    yield HostileCase(
        "base-with-other-heads", key(module="v_proj", side="B"), another_base(v_proj=(256, 256))
    )
    yield HostileCase("base-deeper", key(8), added(key(8)))


def _values() -> Iterator[HostileCase]:
    for dtype in ("F32", "F16", "BF16"):
        for what, number in (("nan", math.nan), ("inf", math.inf), ("minus-inf", -math.inf)):
            yield HostileCase(f"value-{what}-{dtype}", A, value(A, dtype, number), dtype)
    yield HostileCase("value-nan-at-the-very-end", LAST, value(LAST, "BF16", math.nan, 128 * 4 - 1))
    yield HostileCase("value-nan-with-a-payload", B, lambda u: u.fill(B, b"\x81\xff", 17))
    yield HostileCase("value-beyond-bfloat16", B, value(B, "F32", 3.4e38), "F32")

    def immense(upload: Upload) -> None:
        for name in (A, B):
            value(name, "F32", 1e30)(upload)

    yield HostileCase("value-delta-beyond-float32", B, immense, "F32")


def weights_cases() -> Iterator[HostileCase]:
    for kind in (
        _lengths, _header_texts, _metadata, _counts, _dtypes, _shapes, _offsets, _names, _keys, _fits,
        _values,
    ):  # fmt: skip
        yield from kind()
