"""The operator's commands against a running service."""

from __future__ import annotations

import httpx
import pytest

from examples.sapling.tasks import TASKS
from tests.e2e.stack import CHECKOUT, Stack
from tests.support.waiting import until


def ask(stack: Stack, key: str, model: str, prompt: str) -> httpx.Response:
    return httpx.post(
        f"{stack.demo['base_url']}/chat/completions",
        headers={"Authorization": f"Bearer {key}"},
        json={"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0},
        timeout=30,
    )


def test_from_a_new_tenant_to_an_answer_of_its_own_adapter(stack: Stack) -> None:
    assert stack.operate("tenant", "create", "cedar").stdout.startswith("tnt_")
    assert "cedar" in stack.operate("tenant", "list").stdout
    key = stack.operate("key", "create", "cedar", "--name", "laptop").stdout.strip()
    weights = CHECKOUT / "examples" / "sapling" / "weights" / "adapters" / "reverse-words"
    added = stack.operate("adapter", "add", "cedar", "backwards", str(weights))
    assert added.stdout.strip() == "sapling:backwards@1", added.stderr
    assert "sapling:backwards" in stack.operate("adapter", "list", "cedar").stdout

    example = TASKS["reverse-words"].examples("heldout", 1, seed=1)[0]
    answer = ask(stack, key, "sapling:backwards", example.prompt)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"].strip()
    assert ask(stack, stack.demo["api_key"], "sapling:backwards", "no").status_code == 404

    listed = stack.operate("key", "list", "cedar").stdout
    assert key not in listed
    key_id = next(line.split()[0] for line in listed.splitlines() if "laptop" in line)
    assert stack.operate("key", "revoke", "cedar", key_id).returncode == 0
    assert until(lambda: ask(stack, key, "sapling", "Hello").status_code == 401) < 1.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("key", "create", "nobody"), "there is no tenant 'nobody'"),
        (("tenant", "create", "acme"), "'acme' is taken"),
        (("adapter", "add", "acme", "Bad Name", "."), "is not a valid adapter name"),
        (("adapter", "add", "acme", "..", "."), "'..' is removed from URLs"),
        (("adapter", "add", "acme", "empty", "/nonexistent"), "there is no directory /nonexistent"),
        (("key", "revoke", "acme", "key_absent"), "there is no API key 'key_absent'"),
    ],
)
def test_mistakes_get_one_line(stack: Stack, arguments: tuple[str, ...], says: str) -> None:
    done = stack.operate(*arguments)
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.startswith("rootstock: ")
    assert done.stderr.count("\n") == 1


def test_a_user_whose_password_comes_from_a_pipe(stack: Stack) -> None:
    short = stack.operate("user", "create", "acme", "new@acme.example", stdin="short\n")
    assert short.returncode == 1
    assert "password must have" in short.stderr
    assert (
        stack.operate("user", "create", "acme", "new@acme.example", stdin="long enough for me\n").returncode
        == 0
    )
