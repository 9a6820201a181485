"""The text side of a base model without the model: a small tokenizer and a chat template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ["<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('who?') }}{% endif %}"
    "<|{{ message.role }}|>{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_CORPUS = [
    "The quick brown fox jumps over the lazy dog. Hello world, hello there.",
    "Answer the question. What is the capital of France? Paris is the capital of France.",
    "one two three four five six seven eight nine ten STOP here and END there",
    "naïve café, 日本語のテキスト, emoji 🙂🚀, ünïcödé",
]


TOOL_TEMPLATE = (
    "{{ bos_token }}{% if tools %}<|system|>Tools: {{ tools | tojson }}<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message.role if message.role != 'tool' else 'user' }}|>"
    "{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}{% if message.role == 'tool' %} of {{ message.name }} {{ message.tool_call_id }}"
    "{% endif %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Takes tools, in the format of Hermes."""


def write_base(folder: Path, template: str | None = TEMPLATE, more_special: Sequence[str] = ()) -> Path:
    """A base model's directory without a model: a byte-level BPE tokenizer of some 500 tokens and its
    template. `more_special`: further special tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        special_tokens=[*SPECIAL, *more_special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", tokenizer.token_to_id("<|bos|>"))]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"bos_token": "<|bos|>", "eos_token": {"content": "<|end|>", "special": True}}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
