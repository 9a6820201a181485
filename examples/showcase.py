"""Shows what Rootstock does, with the stock `openai` client against a running `rootstock up --demo`.

    python -m examples.showcase --demo var/demo/demo.json

Lists the models, sends requests for every adapter and the base at once, streams one answer, and checks that
the usage API counts exactly the tokens that the answers reported. Exits with status 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from openai import AsyncOpenAI, OpenAIError
from rich.console import Console
from rich.table import Table

from examples.sapling.functions import FUNCTIONS, TOOLS
from examples.sapling.tasks import TASKS

BASE_PROMPT = "What is a river?"
STREAM_PROMPT = "Tell me a story about a dog."
CALLER = "call-functions"
"""The adapter that calls functions."""
CALLER_PROMPT = "What is the weather in Rome?"
USAGE_PATIENCE_S = 15.0


@dataclass
class Totals:
    """Requests and tokens, as reported by responses or by the ledger."""

    requests: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def add(self, usage: Any) -> None:
        """Adds one response's `usage`."""
        self.requests += 1
        self.prompt += usage.prompt_tokens
        self.completion += usage.completion_tokens
        details = usage.prompt_tokens_details
        self.cached += (details.cached_tokens or 0) if details else 0

    def plus(self, other: Totals) -> Totals:
        return Totals(
            self.requests + other.requests,
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
        )

    def minus(self, other: Totals) -> Totals:
        return self.plus(Totals(-other.requests, -other.prompt, -other.cached, -other.completion))


@dataclass
class Answer:
    model: str
    prompt: str
    text: str
    tokens: int
    seconds: float


@dataclass
class Showcase:
    """One run against one service."""

    demo: dict[str, Any]
    out: Console = field(default_factory=lambda: Console(highlight=False))
    spent: Totals = field(default_factory=Totals)
    problems: list[str] = field(default_factory=list)

    async def run(self) -> list[str]:
        """Runs all parts; returns the problems found."""
        client = AsyncOpenAI(
            base_url=self.demo["base_url"],
            api_key=self.demo["api_key"],
            admin_api_key=self.demo["admin_api_key"],
        )
        # The usage API reports by the minute, so what this minute already holds is subtracted.
        since = int(time.time())
        async with client:
            await self.list_models(client)
            earlier = await self.settled_usage(client, since)
            await self.one_batch(client)
            await self.stream(client)
            if CALLER in self.demo["adapters"]:
                await self.call_functions(client)
            await self.reconcile(client, since, earlier)
        return self.problems

    async def list_models(self, client: AsyncOpenAI) -> None:
        models = [model.id async for model in client.models.list()]
        base = self.demo["base"]
        expected = {base, *(f"{base}:{name}" for name in self.demo["adapters"])}
        missing = sorted(expected - set(models))
        if missing:
            self.problems.append(f"models.list() lacks {', '.join(missing)}")
        self.out.print(
            f"[bold]{len(models)} models[/] on one base: [cyan]{'[/], [cyan]'.join(sorted(models))}[/]\n"
        )

    async def one_batch(self, client: AsyncOpenAI) -> None:
        base = self.demo["base"]
        wanted = [(base, BASE_PROMPT)]
        for name in self.demo["adapters"]:
            prompts = TASKS[name].showcase if name in TASKS else (BASE_PROMPT,)
            wanted.append((f"{base}:{name}", prompts[0]))
        started = time.perf_counter()
        answers = await asyncio.gather(*(self.ask(client, model, prompt) for model, prompt in wanted))
        seconds = time.perf_counter() - started
        table = Table(
            title_justify="left", title_style="bold", title=f"{len(wanted)} requests at once, one batch"
        )
        table.add_column("model", style="cyan", no_wrap=True)
        table.add_column("prompt", style="dim")
        table.add_column("answer")
        table.add_column("tokens", justify="right")
        for answer in answers:
            table.add_row(answer.model, answer.prompt, answer.text, str(answer.tokens))
        self.out.print(table)
        tokens = sum(answer.tokens for answer in answers)
        self.out.print(f"[dim]{tokens} tokens in {seconds:.2f} s in total[/]\n")

    async def ask(self, client: AsyncOpenAI, model: str, prompt: str) -> Answer:
        started = time.perf_counter()
        answer = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": prompt}], temperature=0, max_tokens=64
        )
        choice = answer.choices[0]
        text = choice.message.content or ""
        if choice.finish_reason not in ("stop", "length") or not text.strip():
            self.problems.append(f"{model} answered {text!r} and ended with {choice.finish_reason}")
        if answer.model.partition("@")[0] != model:
            self.problems.append(f"{answer.model} answered a request for {model}")
        if answer.usage is None:
            self.problems.append(f"{model} answered without usage")
            return Answer(model, prompt, text, 0, time.perf_counter() - started)
        self.spent.add(answer.usage)
        return Answer(model, prompt, text, answer.usage.completion_tokens, time.perf_counter() - started)

    async def stream(self, client: AsyncOpenAI) -> None:
        model = self.demo["base"]
        self.out.print(f"[bold]streaming[/] from [cyan]{model}[/]: [dim]{STREAM_PROMPT}[/]")
        started = time.perf_counter()
        first: float | None = None
        usage = None
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": STREAM_PROMPT}],
            temperature=0,
            max_tokens=96,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            usage = chunk.usage or usage
            piece = chunk.choices[0].delta.content if chunk.choices else None
            if piece:
                first = first if first is not None else time.perf_counter() - started
                self.out.print(piece, end="", markup=False, soft_wrap=True)
        self.out.print()
        if usage is None or first is None:
            self.problems.append("the stream ended without text or without usage")
            return
        self.spent.add(usage)
        rate = usage.completion_tokens / (time.perf_counter() - started)
        self.out.print(f"[dim]first token after {first * 1000:.0f} ms, {rate:.0f} tokens a second[/]\n")

    async def call_functions(self, client: AsyncOpenAI) -> None:
        """Offers functions, runs those that the model calls, and prints the answer that it makes of them."""
        model = f"{self.demo['base']}:{CALLER}"
        self.out.print(f"[bold]function calls[/] by [cyan]{model}[/]: [dim]{CALLER_PROMPT}[/]")
        messages: list[Any] = [{"role": "user", "content": CALLER_PROMPT}]
        options: dict[str, Any] = {"model": model, "tools": TOOLS, "temperature": 0, "max_tokens": 96}
        first = await client.chat.completions.create(messages=messages, **options)
        calls = first.choices[0].message.tool_calls or []
        messages.append(first.choices[0].message)
        for call in calls:
            arguments = json.loads(call.function.arguments)
            result = FUNCTIONS[call.function.name].result(Random(0), arguments)
            self.out.print(f"  {call.function.name} {arguments} -> {result}", markup=False)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
        second = await client.chat.completions.create(messages=messages, **options)
        for answer in (first, second):
            if answer.usage is not None:
                self.spent.add(answer.usage)
        text = second.choices[0].message.content
        self.out.print(f"  {text}\n", markup=False)
        if not calls or not text:
            self.problems.append(f"{model} made {len(calls)} calls and answered {text!r}")

    async def settled_usage(self, client: AsyncOpenAI, since: int) -> dict[str, Totals]:
        """Returns the ledger's usage before the showcase: reads until two readings agree."""
        earlier = await self.read_usage(client, since)
        while earlier:
            await asyncio.sleep(1.5)
            again = await self.read_usage(client, since)
            if again == earlier:
                break
            earlier = again
        return earlier

    async def reconcile(self, client: AsyncOpenAI, since: int, earlier: dict[str, Totals]) -> None:
        deadline = time.monotonic() + USAGE_PATIENCE_S
        while True:
            now = await self.read_usage(client, since)
            by_model = {model: one.minus(earlier.get(model, Totals())) for model, one in now.items()}
            billed = Totals()
            for one in by_model.values():
                billed = billed.plus(one)
            if billed == self.spent or time.monotonic() > deadline or billed.requests > self.spent.requests:
                break
            await asyncio.sleep(0.25)
        table = Table(title="usage, from the ledger", title_justify="left", title_style="bold")
        table.add_column("model", style="cyan")
        for column in ("requests", "prompt", "cached", "completion"):
            table.add_column(column, justify="right")
        for model, one in sorted(by_model.items()):
            if not one.requests:
                continue
            table.add_row(model, *map(str, (one.requests, one.prompt, one.cached, one.completion)))
        table.add_section()
        table.add_row("ledger", *map(str, (billed.requests, billed.prompt, billed.cached, billed.completion)))
        spent = self.spent
        table.add_row("answers", *map(str, (spent.requests, spent.prompt, spent.cached, spent.completion)))
        self.out.print(table)
        if billed == spent:
            self.out.print(
                "[bold green]✓[/] every token the answers reported is in the ledger exactly once\n"
            )
        else:
            self.problems.append(f"the ledger counts {billed}, the answers reported {spent}")

    async def read_usage(self, client: AsyncOpenAI, since: int) -> dict[str, Totals]:
        """Returns the ledger's usage by model, from the minute of `since` on."""
        by_model: dict[str, Totals] = {}
        page: str | None = None
        while True:
            extra: dict[str, Any] = {"page": page} if page else {}
            answer = await client.admin.organization.usage.completions(
                start_time=since, bucket_width="1m", group_by=["model"], limit=60, **extra
            )
            for bucket in answer.data:
                for result in bucket.results:
                    if result.object != "organization.usage.completions.result":
                        continue
                    sums = by_model.setdefault(str(result.model), Totals())
                    sums.requests += result.num_model_requests
                    sums.prompt += result.input_tokens
                    sums.cached += result.input_cached_tokens or 0
                    sums.completion += result.output_tokens
            if not answer.has_more or not answer.next_page:
                return by_model
            page = answer.next_page


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--demo", type=Path, default=Path("var/demo/demo.json"), help="written by rootstock up --demo"
    )
    arguments = parser.parse_args()
    try:
        demo = json.loads(arguments.demo.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"cannot read {arguments.demo}: {error}; start `rootstock up --demo` first", file=sys.stderr)
        return 1
    try:
        problems = asyncio.run(Showcase(demo).run())
    except OpenAIError as error:
        problems = [f"{type(error).__name__}: {error}"]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
