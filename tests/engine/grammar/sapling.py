"""The sapling base's tokenizer and vocabulary: an engine whose requests may have grammars."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from engine.core import EngineCore
from engine.grammar.admission import GrammarAdmission
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.store import GrammarKey
from engine.grammar.tokenizer import load_tokenizer
from engine.model.config import load_config
from engine.model.loading import load_model
from engine.model.model import Model
from engine.protocol import Grammar, SamplingParams, Submit
from engine.vocabulary import Vocabulary
from tests.engine.runner.bases import write_base
from tests.engine.runner.rig import make_core
from tests.support.waiting import until

BASE = Path(__file__).resolve().parents[3] / "examples" / "sapling" / "weights" / "base"
VOCABULARY = Vocabulary.load(BASE)
PROMPT = [41, 300, 77, 1024, 9, 500]


def small_model(folder: Path) -> Model:
    """One small layer of random weights with sapling's vocabulary: what a grammar allows does not depend on
    what a model has learned, and every step takes a tenth of the CPU.
    """
    sapling = load_config(BASE)
    write_base(folder, num_hidden_layers=1, vocab_size=sapling.vocab_size, eos_token_id=list(sapling.eos_ids))
    return load_model(folder)


_tokenizer = cache(load_tokenizer)


def compiler(model: Model) -> GrammarCompiler:
    tokenizer = _tokenizer(BASE, model.config.eos_ids, model.config.vocab_size)
    return GrammarCompiler(tokenizer, model.config.eos_ids, lambda: None)


def grammar_core(model: Model, artifacts: Path, **sizes: Any) -> EngineCore:
    sizes = {"context_length": 256, "num_blocks": 400} | sizes
    return make_core(
        model,
        artifacts,
        token_bytes=VOCABULARY.token_bytes,
        grammars=GrammarAdmission(compiler(model)),
        **sizes,
    )


def compiled(model: Model, grammar: Grammar) -> GrammarAdmission:
    """With the grammar in its cache: when a request runs does not depend on how long compiling takes."""
    made = compiler(model)
    made.start(GrammarKey("acme", grammar))
    until(made.take, 30)
    return GrammarAdmission(made)


def schema(document: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(document))


def submission(request_id: str, grammar: Grammar | None, **fields: Any) -> Submit:
    """Sampling parameters and Submit's own fields alike."""
    own = {
        name: fields.pop(name)
        for name in ("tenant", "adapter", "n", "prompt_ids", "reasoning")
        if name in fields
    }
    sampling = SamplingParams(**{"max_tokens": 200, "temperature": 1.0, "seed": 3, **fields})
    return Submit(
        request_id=request_id,
        sampling=sampling,
        submitted_at=1.0,
        grammar=grammar,
        **{"tenant": "acme", "prompt_ids": PROMPT, **own},
    )


def text_of(token_ids: list[int]) -> str:
    return VOCABULARY.decode(token_ids).decode()
