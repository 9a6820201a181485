"""Patterns select what PEFT's `re` selects, or are refused by field; their steps are bounded together."""

from __future__ import annotations

import itertools
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.inspection.config import parse_config
from adapters.inspection.errors import InspectionRefused
from adapters.inspection.modules import module_path
from adapters.inspection.patterns import MAX_STEPS, Pattern, Steps
from tests.adapters.inspection.uploads import SHAPES, plain_config
from tests.support.examples import examples

PATHS = [module_path(layer, name) for layer in (0, 1, 11) for name in SHAPES] + [
    "lm_head",
    "model.embed_tokens",
]
TAIL, LAYER_INDEX = r"(?:.*\.)?(?:{})", r"(?:^|.*?\.){}\.(?P<index>\d+)\."

REAL = [
    "q_proj",
    "model.layers.0.self_attn.q_proj",
    r"model\.layers\.1\.mlp\.(gate|up|down)_proj",
    r".*\.(q|k|v|o)_proj",
    r".*self_attn.*(q_proj|v_proj)$",
    r"^model\.layers\.(0|1)\..*",
    r".*layers\.(?:[0-9]|1[01])\.self_attn\.[qk]_proj",
    r"(?:.*?(?:language|text|model).*?(?:self_attn|mlp).*?(?:q_proj|up_proj).*?)",
    r"\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:q_proj|down_proj)",
    r"model.layers.\d+.mlp.[^.]+",
    r"(self_attn|mlp)\.\w+_proj",
]
"""As configs in the field have them."""

_PIECES = st.sampled_from(
    [
        "q_proj", "proj", "model", "layers", "self_attn", "0", "1", "_", "-", ".", r"\.", ".*", ".+?", r"\d+",
        r"\w", r"\S", r"\b", r"\B", "(", "(?:", "(?P<a>", ")", "|", "^", "$", "?", "+", "*", "{1,2}", "{2}",
        "{,2}", "{99999999999}", "{", "}", "[a-z_]", "[^.]", "[]a]", "[a-]", r"[\d.]", r"[\w-z]",
        "[[:alpha:]]", "[a&&b]", "[", "]", r"\1", r"\012", r"\x71", r"\Z", r"\A", r"\z",
        r"\Q", r"\pL", r"\_", "(?i)",
        "(?!q)",         "(?=q)", "(?<=q)", "(?#q)", "(?>q)", "++", "*?", "é", " ", "#",
    ]
)  # fmt: skip


def compiled(pattern: str, form: str = "{}") -> Pattern | None:
    try:
        return Pattern("rank_pattern", pattern, Steps(), form)
    except InspectionRefused:
        return None


def peft_tail(pattern: str, path: str) -> bool:
    return re.match(rf"(.*\.)?({pattern})$", path) is not None


@pytest.mark.parametrize("pattern", REAL)
def test_real_patterns_select_what_peft_selects(pattern: str) -> None:
    whole, tail = compiled(pattern), compiled(pattern, TAIL)
    assert whole is not None
    assert tail is not None
    assert [whole.matches(p) for p in PATHS] == [re.fullmatch(pattern, p) is not None for p in PATHS]
    assert [tail.matches(p) for p in PATHS] == [peft_tail(pattern, p) for p in PATHS]
    assert any(map(tail.matches, PATHS)), "or this test says nothing"


@settings(max_examples=examples(1500), deadline=None)
@given(st.lists(_PIECES, min_size=1, max_size=8).map("".join))
def test_any_pattern_selects_what_peft_selects_or_is_refused(pattern: str) -> None:
    whole, tail = compiled(pattern), compiled(pattern, TAIL)
    if whole is not None:
        assert [whole.matches(p) for p in PATHS] == [re.fullmatch(pattern, p) is not None for p in PATHS]
    if tail is not None:
        assert [tail.matches(p) for p in PATHS] == [peft_tail(pattern, p) for p in PATHS]
    layers = compiled(pattern, LAYER_INDEX)
    if layers is not None:
        expected = re.compile(LAYER_INDEX.replace("{}", pattern))
        for path in PATHS:
            found = expected.match(path)
            index = found["index"] if found else None
            assert layers.layer_index(path) == (found is not None, None if index is None else int(index))


@pytest.mark.parametrize(
    "pattern",
    ["(?!lm_head).*", r"(q)\1", "(?i)q_proj", "q{,3}", "[[:alpha:]]", r"q\Z", "q*+", "(?P<a>q)", "q{1000}"],
)
def test_what_the_two_libraries_read_differently_is_named(pattern: str) -> None:
    with pytest.raises(InspectionRefused, match=r"is not supported .* name the modules in a list") as caught:
        Pattern("target_modules", pattern, Steps())
    assert caught.value.field == "target_modules"


def test_steps_are_bounded_over_all_patterns_of_a_config() -> None:
    """Many patterns that are slow in any linear matcher: refused by the field that goes beyond, soon."""
    paths = [module_path(layer, name) for layer in range(128) for name in SHAPES]
    slow = {f"(?:{'.?' * 9}).{{0,20}}Y{index}": 4 for index in range(1024)}

    def scale_all() -> None:
        config = parse_config(plain_config(alpha_pattern=slow))
        for path in paths:
            config.scale_of(path)

    began = time.process_time()
    with pytest.raises(InspectionRefused, match=f"more than {MAX_STEPS} steps") as caught:
        scale_all()
    assert caught.value.field == "alpha_pattern"
    assert time.process_time() - began < 5


def test_a_rank_and_an_alpha_for_every_module_of_a_large_base_are_within_the_bound() -> None:
    paths = [module_path(layer, name) for layer in range(80) for name in SHAPES]
    ranks = {path: index % 8 + 1 for index, path in enumerate(paths)}
    config = parse_config(plain_config(rank_pattern=ranks, alpha_pattern=ranks, target_modules="all-linear"))
    assert [config.rank_of(path) for path in paths] == list(ranks.values())
    assert {config.scale_of(path) for path in paths} == {1.0}


def test_the_first_pattern_that_matches_counts() -> None:
    for first, second in itertools.permutations((("q_proj", 2), (r"layers\.1\..*", 3))):
        config = parse_config(plain_config(rank_pattern=dict([first, second])))
        assert config.rank_of("model.layers.1.self_attn.q_proj") == first[1]
        assert config.rank_of("model.layers.1.mlp.up_proj") == 3
        assert config.rank_of("model.layers.0.mlp.up_proj") == 4


def test_a_list_names_modules_and_no_patterns() -> None:
    config = parse_config(plain_config(target_modules=["self_attn.q_proj", "v.proj"]))
    assert config.targets("model.layers.0.self_attn.q_proj")
    assert not config.targets("model.layers.0.self_attn.v_proj"), "a dot is a dot"
    assert not config.targets("model.layers.0.self_attn.xq_proj")
    only = parse_config(plain_config(target_modules=["all-linear"]))
    assert not only.targets("model.layers.0.self_attn.q_proj"), "PEFT's word only where it is the whole value"
