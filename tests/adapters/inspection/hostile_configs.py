"""Configs that must be refused: no JSON, numbers out of range, endless patterns, what is not served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.adapters.inspection.damage import CONFIG, HostileCase, config, setting
from tests.adapters.inspection.uploads import plain_config


def _encoded(**changes: Any) -> bytes:
    return json.dumps(plain_config(**changes)).encode()


def _texts() -> Iterator[HostileCase]:
    good = _encoded()
    for name, raw in {
        "empty": b"", "not-json": b"r: 4", "array": b"[]", "null": b"null", "text": b'"LORA"', "number": b"4",
        "unclosed": good[:-1], "followed": good + b"{}", "bom": b"\xef\xbb\xbf" + good,
        "comma": good[:-1] + b",}",
        "utf-16": good.decode().encode("utf-16"), "latin-1": good[:-1] + b', "revision": "\xe9"}',
        "nul": good + b"\0", "binary": bytes(range(256)) * 8, "nan": good.replace(b'"r": 4', b'"r": NaN'),
        "infinity": good.replace(b'"lora_alpha": 8', b'"lora_alpha": Infinity'),
        "half-a-pair": good[:-1] + b', "revision": "\\udfff"}', "deep": b'{"a":' + b"[" * 200_000,
        "deeper": b'{"a":' * 100_000, "two-megabytes": good[:-1] + b" " * (2 << 20) + b"}",
        "digits": good.replace(b'"r": 4', b'"r": ' + b"9" * 5000),
    }.items():  # fmt: skip
        yield HostileCase(f"config-{name}", CONFIG, setting(config=raw))
    yield HostileCase("config-field-twice", "r", setting(config=good[:-1] + b', "r": 4}'))
    yield HostileCase(
        "config-nested-field-twice",
        "eva_config",
        setting(config=good[:-1] + b', "eva_config": {"b": [{"a":1,"a":2}]}}'),
    )


def _numbers() -> Iterator[HostileCase]:
    numbers = {
        "0": 0, "minus-1": -1, "text": "4", "null": None, "true": True, "list": [4], "object": {},
        "exponent": 1e300,
    }  # fmt: skip
    for what, number in (numbers | {"100000": 100_000, "fraction": 4.5, "googol": 10**100}).items():
        yield HostileCase(f"r-{what}", "r", config(r=number))
    for what, number in (numbers | {"googol": 10**100}).items():
        yield HostileCase(f"lora-alpha-{what}", "lora_alpha", config(lora_alpha=number))
    yield HostileCase(
        "lora-alpha-overflows", "lora_alpha",
        setting(config=_encoded(lora_alpha=7).replace(b"7", b"1e999")),
    )  # fmt: skip
    for what, number in {"0": 0, "minus-1": -1, "100000": 100_000, "text": "4", "null": None}.items():
        yield HostileCase(f"rank-pattern-{what}", "rank_pattern", config(rank_pattern={"q_proj": number}))
    for what, number in {"0": 0, "minus-8": -8, "text": "8", "null": None, "huge": 1e20}.items():
        yield HostileCase(f"alpha-pattern-{what}", "alpha_pattern", config(alpha_pattern={"q_proj": number}))
    for field in ("rank_pattern", "alpha_pattern"):
        for what, told in {
            "no-object": ["q_proj"], "only-text": "q_proj", "bracket": {"(": 4},
            "catastrophic": {"((.*)*)*x": 4},
            "stars": {".*" * 20 + "x": 4}, "flags-inside": {"(?i)q_proj": 4}, "look-behind": {"(?<=a+)q": 4},
            "group-named-twice": {"(?P<a>q)(?P<a>q)": 4}, "locale": {"(?L)q": 4},
            "repeat": {"q{99999999999}": 4},
            "long": {"q" * 5000: 4}, "deep": {"(" * 500 + "q" + ")" * 500: 4},
            "two-thousand": {f"q{i}": 4 for i in range(2000)},
            "look-ahead": {"(?!lm_head).*q_proj": 4}, "back-reference": {r"(q)_\1roj": 4},
            "atomic": {"(?>q)_proj": 4}, "possessive": {"q*+_proj": 4}, "open-count": {"q{,3}_proj": 4},
            "posix-class": {"[[:alpha:]]_proj": 4}, "end": {r"q_proj\Z": 4}, "not-ascii": {"q_proj\u0661": 4},
        }.items():  # fmt: skip
            yield HostileCase(f"{field.replace('_', '-')}-{what}", field, config(**{field: told}))


def _modules() -> Iterator[HostileCase]:
    for what, told in {
        "missing": ..., "null": None, "empty": [], "empty-text": "", "object": {"q_proj": 1}, "number": 7,
        "number-inside": ["q_proj", 7], "empty-inside": ["q_proj", ""],
        "unknown": ["q_proj", "query_key_value"],
        "output-layer": ["q_proj", "v_proj", "lm_head"], "embeddings": ["q_proj", "v_proj", "embed_tokens"],
        "path-like": ["../q_proj"], "nothing-matches": "no_such_module", "bracket": "[", "stars": ".*" * 9,
        "catastrophic": "(a+)+$", "everything": ".*", "two-thousand": [f"q{i}" for i in range(2000)],
        "long": "q" * 5000,
    }.items():  # fmt: skip
        yield HostileCase(f"target-modules-{what}", "target_modules", config(target_modules=told))
    yield HostileCase("exclude-modules-all", "target_modules", config(exclude_modules=["q_proj", "v_proj"]))
    yield HostileCase("exclude-modules-bracket", "exclude_modules", config(exclude_modules="("))
    for what, told in {
        "8": [8], "minus-1": [-1], "text": ["0"], "object": {"0": 1}, "true": True, "fraction": [0.5],
        "many": [0] * 100_000,
    }.items():  # fmt: skip
        yield HostileCase(
            f"layers-to-transform-{what}", "layers_to_transform", config(layers_to_transform=told)
        )
    yield HostileCase(
        "layers-with-a-pattern", "layers_to_transform",
        config(layers_to_transform=[0], target_modules=".*q_proj"),
    )  # fmt: skip
    yield HostileCase(
        "layers-pattern-elsewhere", "target_modules", config(layers_to_transform=[0], layers_pattern="blocks")
    )
    for what, told in {"bracket": ["("], "takes-our-group": "(?P<index>layers)", "number": 7}.items():
        yield HostileCase(f"layers-pattern-{what}", "layers_pattern", config(layers_pattern=told))


def _kinds() -> Iterator[HostileCase]:
    for field, told in (
        ("peft_type", "IA3"), ("peft_type", ...), ("peft_type", None), ("peft_type", ["LORA"]),
        ("peft_type", "ADALORA"),
        ("task_type", "SEQ_CLS"), ("task_type", 1), ("task_type", ["CAUSAL_LM"]), ("bias", "all"),
        ("bias", "lora_only"), ("bias", None), ("lora_bias", True), ("use_dora", True), ("use_rslora", "yes"),
        ("use_rslora", 1), ("use_rslora", None), ("modules_to_save", ["lm_head"]),
        ("trainable_token_indices", [1, 2]),
        ("alora_invocation_tokens", [5]), ("fan_in_fan_out", True), ("use_qalora", True),
        ("use_bdlora", True),
        ("layer_replication", [[0, 2]]), ("target_parameters", ["mlp.experts"]),
        ("megatron_config", {"a": 1}),
        ("monteclora_config", {"samples": 3}), ("kasa_config", {"beta": 1}), ("arrow_config", {"top_k": 2}),
        ("init_lora_weights", "pissa"), ("init_lora_weights", "olora"), ("init_lora_weights", "loftq"),
        ("init_lora_weights", ["gaussian"]), ("init_lora_weights", 7), ("use_time_travel", True),
        ("__class__", "x"),
        ("trust_remote_code", True), ("../../etc", 1), ("<b>", 1),
    ):  # fmt: skip
        yield HostileCase(f"{field} {told!r}", field, config(**{field: told}))


def config_cases() -> Iterator[HostileCase]:
    for kind in (_texts, _numbers, _modules, _kinds):
        yield from kind()
