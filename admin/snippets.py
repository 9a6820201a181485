"""Builds code samples: how to upload an adapter from a terminal, and how to send it a request.

Every inserted value is a model name or this server's address, both of a safe grammar.
"""

from __future__ import annotations

Snippets = list[tuple[str, str]]
"""(language, text)."""


def bring(origin: str, base: str) -> Snippets:
    """Returns the upload of an adapter's two files, in each language."""
    curl = f"""\
export ROOTSTOCK_API_KEY=...
upload() {{
  curl -s {origin}/v1/files -H "Authorization: Bearer $ROOTSTOCK_API_KEY" \\
    -F purpose=adapter -F file=@"$1" | python3 -c 'import json, sys; print(json.load(sys.stdin)["id"])'
}}
weights=$(upload adapter_model.safetensors)
config=$(upload adapter_config.json)
curl {origin}/v1/adapters -H "Authorization: Bearer $ROOTSTOCK_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{{"name": "my-adapter", "base_model": "{base}", "file_ids": ["'$weights'", "'$config'"]}}'
"""
    python = f"""\
import os
from openai import OpenAI

client = OpenAI(base_url="{origin}/v1", api_key=os.environ["ROOTSTOCK_API_KEY"])
files = [
    client.files.create(purpose="adapter", file=open(name, "rb")).id
    for name in ("adapter_model.safetensors", "adapter_config.json")
]
adapter = client.post(
    "/adapters",
    cast_to=object,
    body={{"name": "my-adapter", "base_model": "{base}", "file_ids": files}},
)
print(adapter["id"], adapter["state"])
"""
    return [("curl", curl), ("Python", python)]


def ask(origin: str, model: str, key: str = "") -> Snippets:
    """Returns a chat request in each language, with `key` filled in, or read from the environment."""
    in_python = f'"{key}"' if key else 'os.environ["ROOTSTOCK_API_KEY"]'
    in_javascript = f'"{key}"' if key else "process.env.ROOTSTOCK_API_KEY"
    curl = f"""\
curl {origin}/v1/chat/completions \\
  -H "Authorization: Bearer {key or "$ROOTSTOCK_API_KEY"}" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
"""
    python = f"""\
{"" if key else "import os"}
from openai import OpenAI

client = OpenAI(base_url="{origin}/v1", api_key={in_python})
answer = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": "Hello!"}}],
)
print(answer.choices[0].message.content)
"""
    javascript = f"""\
import OpenAI from "openai";

const client = new OpenAI({{ baseURL: "{origin}/v1", apiKey: {in_javascript} }});
const answer = await client.chat.completions.create({{
  model: "{model}",
  messages: [{{ role: "user", content: "Hello!" }}],
}});
console.log(answer.choices[0].message.content);
"""
    return [("curl", curl), ("Python", python.lstrip()), ("JavaScript", javascript)]
