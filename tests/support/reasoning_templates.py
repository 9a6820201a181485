"""Chat templates of models that think, as small as what matters about them: how they open and close thinking,
and what they show of earlier turns.
"""

from __future__ import annotations

QWEN3 = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% set thought = message.reasoning_content or '' %}{% set content = message.content %}"
    "{% if message.role == 'assistant' and not thought and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{% if thought and loop.last %}<think>\n{{ thought }}\n</think>\n\n{% endif %}{{ content }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
"""The model begins to think, or answers; `enable_thinking` closes its thinking before it begins. The thinking
of the last turn is shown."""
DEEPSEEK_R1 = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.role == 'assistant' %}{{ message.content.split('</think>')[-1] }}"
    "{% else %}{{ message.content }}{% endif %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
"""The prompt ends within thinking. What was thought before is dropped. QwQ's is alike."""
DEEPSEEK_V31 = (
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ '<think>' if thinking else '</think>' }}{% endif %}"
)
"""No thinking, unless it is asked for."""
MAGISTRAL = (
    "{% set default = 'Think first: [THINK]your thoughts[/THINK], then answer.' %}"
    "{% if messages[0].role != 'system' %}<|system|>{{ default }}<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Markers are special tokens; thinking cannot be turned off."""
