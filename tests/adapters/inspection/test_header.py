"""Our reading of a file is the library's, or it is refused: on random damage too."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import deserialize
from safetensors.torch import save

from adapters.inspection.config import LoraConfig, parse_config
from adapters.inspection.errors import InspectionRefused, printable
from adapters.inspection.header import Header, read_header
from adapters.inspection.library import check_agreement, make_shadow
from adapters.inspection.modules import BaseShape, match_tensors
from tests.adapters.inspection.uploads import LAYERS, SHAPES, good_upload, key, plain_config
from tests.adapters.peft_files import lora_tensors, tiny_config
from tests.support.examples import examples

GOOD = good_upload(modules=["q_proj"], layers=range(2)).file()
HEADER_END = 8 + int.from_bytes(GOOD[:8], "little")
BASE = BaseShape(LAYERS, SHAPES)


@contextmanager
def in_memory(content: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("upload")
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        yield descriptor
    finally:
        os.close(descriptor)


def read(content: bytes) -> Header:
    """As an inspection does: ours, then the library's."""
    with in_memory(content) as descriptor:
        shadow = make_shadow(descriptor)
        try:
            header = read_header(descriptor)
            assert shadow is not None
            check_agreement(header, shadow)
            return header
        finally:
            if shadow is not None:
                os.close(shadow)


def check_words(refused: InspectionRefused) -> None:
    assert refused.field
    assert refused.reason
    assert str(refused).isprintable()


def refused_or_agreed(content: bytes) -> bool:
    """Whether it was accepted. Whatever is, the library reads the same bytes for every tensor."""
    try:
        header = read(content)
    except InspectionRefused as refused:
        check_words(refused)
        return False
    theirs = dict(deserialize(content))
    assert theirs.keys() == header.tensors.keys()
    for name, tensor in header.tensors.items():
        assert theirs[name]["dtype"] == tensor.dtype
        assert tuple(theirs[name]["shape"]) == tensor.shape
        assert bytes(theirs[name]["data"]) == content[tensor.start : tensor.end]
    return True


def test_what_the_library_writes_is_read() -> None:
    tensors = lora_tensors(tiny_config())
    header = read(save(tensors, {"format": "pt"}))
    assert set(header.tensors) == set(tensors)
    assert header.metadata == {"format": "pt"}
    for name, tensor in tensors.items():
        assert header.tensors[name].shape == tuple(tensor.shape)
        assert header.tensors[name].dtype == "F32"
    assert refused_or_agreed(GOOD)
    # Spaces after the object are the format's own padding.
    padded = GOOD[8:HEADER_END] + b" " * 9
    assert refused_or_agreed(len(padded).to_bytes(8, "little") + padded + GOOD[HEADER_END:])


@settings(max_examples=examples(400), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)) | st.tuples(
            st.integers(0, HEADER_END - 1), st.sampled_from(list(b'0123456789[]{}",:-.eE \x00\xff'))
        ),
        min_size=1,
        max_size=6,
    )
)  # fmt: skip
def test_changed_bytes(changes: list[tuple[int, int]]) -> None:
    content = bytearray(GOOD)
    for place, byte in changes:
        content[place] = byte
    refused_or_agreed(bytes(content))


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, len(GOOD)), st.integers(0, len(GOOD)), st.binary(max_size=40))
def test_pieces_cut_out_and_put_in(start: int, end: int, inserted: bytes) -> None:
    refused_or_agreed(GOOD[:start] + inserted + GOOD[end:])


NUMBERS = st.integers(-(1 << 65), 1 << 65) | st.integers(-4, 9000) | st.floats() | st.booleans()
JSON = st.recursive(
    NUMBERS | st.none() | st.text(max_size=12) | st.sampled_from(["F32", "BF16", "F16", "F64"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=examples(400), deadline=None)
@given(
    st.sampled_from([key(0), key(0, side="B"), key(1), "__metadata__"]),
    st.sampled_from(["dtype", "shape", "data_offsets", "more", ...]),
    JSON | st.lists(NUMBERS, max_size=3),
)
def test_changed_meaning(name: str, part: Any, value: Any) -> None:
    header = json.loads(GOOD[8:HEADER_END])
    if part is ...:
        header[name] = value
    else:
        header[name][part] = value
    text = json.dumps(header).encode()
    refused_or_agreed(len(text).to_bytes(8, "little") + text + GOOD[HEADER_END:])


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=300))
@example(b"\x02" + bytes(7) + b"{}")
@example(b"\x02" + bytes(7) + b"{}\0")
def test_noise(content: bytes) -> None:
    refused_or_agreed(content)
    text = content[:200]
    refused_or_agreed(len(text).to_bytes(8, "little") + text + content[200:])


CONFIG_FIELDS = [
    "peft_type", "task_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern",
    "target_modules",
    "exclude_modules", "layers_to_transform", "layers_pattern", "bias", "init_lora_weights", "use_dora",
    "new",
]  # fmt: skip
PATTERNS = st.text("aq_proj.*+?()[]{}|\\d0123^$<>=!:PiLx-", max_size=14) | st.text(max_size=5)


@settings(max_examples=examples(500), deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(CONFIG_FIELDS),
        JSON
        | PATTERNS
        | st.lists(PATTERNS, max_size=3)
        | st.dictionaries(PATTERNS, st.integers(1, 9), max_size=3)
        | st.lists(st.integers(-1, 9), max_size=3),
        min_size=1,
        max_size=4,
    )
)
def test_any_config_is_understood_or_refused(changes: dict[str, Any]) -> None:
    with in_memory(GOOD) as descriptor:
        header = read_header(descriptor)
    try:
        config = parse_config(plain_config(**changes))
        assert isinstance(config, LoraConfig)
        match_tensors(header, config, BASE)
    except InspectionRefused as refused:
        check_words(refused)


@given(st.text(max_size=300), st.integers(4, 50))
def test_what_is_printed_is_printable(text: str, longest: int) -> None:
    shown = printable(text, longest)
    assert len(shown) <= longest
    assert shown.isascii()
    assert shown == "" or shown.isprintable()
    if text.isascii() and text.isprintable() and len(text) <= longest and "\\" not in text:
        assert shown == text


def test_the_library_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second opinion is heard: another file's shadow is another opinion."""
    other = good_upload(modules=["v_proj"], layers=range(2)).file()
    with in_memory(GOOD) as ours, in_memory(other) as theirs:
        header = read_header(ours)
        shadow = make_shadow(theirs)
        assert shadow is not None
        with pytest.raises(InspectionRefused, match="library"):
            check_agreement(header, shadow)
        os.close(shadow)
        broken = os.memfd_create("broken")
        os.write(broken, GOOD[:-1])
        with pytest.raises(InspectionRefused, match="not a valid safetensors file"):
            check_agreement(header, broken)
        os.close(broken)


def test_the_shadow_takes_no_memory() -> None:
    with in_memory(b"") as descriptor:
        os.write(descriptor, GOOD[:HEADER_END])
        os.ftruncate(descriptor, 1 << 40)
        shadow = make_shadow(descriptor)
        assert shadow is not None
        assert os.fstat(shadow).st_size == 1 << 40
        assert os.fstat(shadow).st_blocks * 512 < 1 << 20
        os.close(shadow)
