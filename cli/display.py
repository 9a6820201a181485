"""Shows the progress of `rootstock up`: steps with their duration, notes, and the closing panel.

`LiveDisplay` draws on a terminal; `PlainDisplay` writes plain lines to logs and pipes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.spinner import Spinner
    from rich.table import Table


@dataclass(frozen=True)
class Welcome:
    """Addresses and examples shown to the operator once everything serves."""

    base_url: str
    console_url: str
    metrics_url: str
    data_dir: str
    took_s: float
    model: str
    prompt: str = "Hello"
    api_key: str | None = None
    """Only the demo's key is shown: other keys are shown once, by `rootstock key create`."""
    sign_in: str | None = None
    payments: str | None = None
    """The payment provider, unless that is Stripe."""

    def curl(self) -> str:
        """Returns a request to paste into a shell."""
        key = self.api_key or "$ROOTSTOCK_API_KEY"
        return (
            f"curl {self.base_url}/chat/completions \\\n"
            f'  -H "Authorization: Bearer {key}" \\\n'
            f"  -H 'Content-Type: application/json' \\\n"
            f'''  -d '{{"model": "{self.model}",'''
            f''' "messages": [{{"role": "user", "content": "{self.prompt}"}}]}}\''''
        )

    def python(self) -> str:
        """Returns the same request for the stock `openai` client."""
        key = f'"{self.api_key}"' if self.api_key else 'os.environ["ROOTSTOCK_API_KEY"]'
        first = "from openai import OpenAI" if self.api_key else "import os\nfrom openai import OpenAI"
        return (
            f"{first}\n"
            f'client = OpenAI(base_url="{self.base_url}",\n'
            f"                api_key={key})\n"
            f'answer = client.chat.completions.create(model="{self.model}",\n'
            f'    messages=[{{"role": "user", "content": "{self.prompt}"}}])\n'
            f"print(answer.choices[0].message.content)"
        )

    def places(self) -> list[tuple[str, str]]:
        """Returns label and address of everything that can be visited."""
        rows = [("API", self.base_url), ("Console", self.console_url), ("Metrics", self.metrics_url)]
        if self.sign_in:
            rows.append(("Sign in", self.sign_in))
        if self.payments:
            rows.append(("Payments", self.payments))
        return [*rows, ("Data, logs", self.data_dir)]


class Display(Protocol):
    """Where progress is shown."""

    def step(self, title: str, done: str = "ready") -> _Step:
        """Returns a step to enter; `done` describes its success unless it has a detail."""

    def note(self, text: str) -> None:
        """Shows one line of information for the operator."""

    def trouble(self, text: str, lines: list[str]) -> None:
        """Shows an error; `lines` are the evidence, such as the end of a log."""

    def welcome(self, welcome: Welcome) -> None: ...

    def close(self) -> None: ...


class _Step(Protocol):
    """A running step: a context manager; `detail` says what it is doing now."""

    def __enter__(self) -> _Step: ...

    def __exit__(self, *problem: object) -> None: ...

    def detail(self, text: str) -> None: ...


def open_display(stream: TextIO | None = None) -> Display:
    """Returns the display that suits the output: a terminal, or anything else."""
    stream = stream or sys.stdout
    return LiveDisplay(stream) if stream.isatty() else PlainDisplay(stream)


class PlainDisplay:
    """Writes one line when a step ends and one per note, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def step(self, title: str, done: str = "ready") -> _Step:
        return _PlainStep(title, done, self._say)

    def note(self, text: str) -> None:
        self._say(text)

    def trouble(self, text: str, lines: list[str]) -> None:
        self._say(f"error: {text}")
        for line in lines:
            self._say(f"  | {line}")

    def welcome(self, welcome: Welcome) -> None:
        self._say(f"ready in {welcome.took_s:.1f} s")
        for label, value in welcome.places():
            self._say(f"{label}: {value}")
        self._say(f"\n{welcome.curl()}\n\n{welcome.python()}\n")

    def close(self) -> None:
        self._stream.flush()


class _PlainStep:
    def __init__(self, title: str, done: str, say: _Say) -> None:
        self._title, self._say, self._detail = title, say, done

    def __enter__(self) -> _PlainStep:
        self._started = time.monotonic()
        return self

    def __exit__(self, *problem: object) -> None:
        seconds = f"{time.monotonic() - self._started:.1f} s"
        if problem[0] is None:
            self._say(f"{self._title}: {self._detail} ({seconds})")
        else:
            self._say(f"{self._title}: failed after {seconds}")

    def detail(self, text: str) -> None:
        self._detail = text


class _Say(Protocol):
    def __call__(self, text: str, /) -> None: ...


class LiveDisplay:
    """Draws spinners that turn into check marks, on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console: Console = Console(file=stream, highlight=False)
        self._steps: list[_LiveStep] = []
        self._live: object | None = None

    def step(self, title: str, done: str = "ready") -> _Step:
        return _LiveStep(title, self)

    def note(self, text: str) -> None:
        self._console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {_escaped(text)}")

    def trouble(self, text: str, lines: list[str]) -> None:
        self._console.print(f"[bold red]error[/] {_escaped(text)}")
        for line in lines:
            self._console.print(f"  [red]│[/] [dim]{_escaped(line)}[/]")

    def welcome(self, welcome: Welcome) -> None:
        from rich.panel import Panel
        from rich.syntax import Syntax
        from rich.table import Table

        places = Table.grid(padding=(0, 2))
        for label, value in welcome.places():
            places.add_row(f"[dim]{label}[/]", f"[bold]{_escaped(value)}[/]")
        title = f"[bold green]rootstock serves[/] [dim]after {welcome.took_s:.1f} s[/]"
        self._console.print(
            Panel(places, title=title, title_align="left", border_style="green", expand=False, padding=(1, 2))
        )
        # Outside the frame and unwrapped, so that copied text carries no borders.
        for code, language in ((welcome.curl(), "bash"), (welcome.python(), "python")):
            syntax = Syntax("", language, theme="ansi_dark", background_color="default")
            self._console.print("\n", syntax.highlight(code), sep="", end="", soft_wrap=True)
        self._console.print("\n[dim]Ctrl-C drains and stops.[/]")

    def close(self) -> None:
        assert not self._steps, "a step is still open"

    # The live area shows the running steps; a finished one is printed above it and stays.
    def _opened(self, step: _LiveStep) -> None:
        from rich.live import Live

        self._steps.append(step)
        if self._live is None:
            live = Live(
                get_renderable=self._render, console=self._console, refresh_per_second=12, transient=True
            )
            live.start()
            self._live = live

    def _closed(self, step: _LiveStep, failed: bool) -> None:
        from rich.live import Live

        self._steps.remove(step)
        mark = "[bold red]✗[/]" if failed else "[bold green]✓[/]"
        self._console.print(f" {mark} {step.line()}")
        if not self._steps and isinstance(self._live, Live):
            self._live.stop()
            self._live = None

    def _render(self) -> Table:
        from rich.table import Table

        rows = Table.grid(padding=(0, 0))
        for step in self._steps:
            rows.add_row(step.spinner(), f" {step.line()}")
        return rows


class _LiveStep:
    def __init__(self, title: str, display: LiveDisplay) -> None:
        from rich.spinner import Spinner

        self._title, self._display, self._detail = title, display, ""
        self._spinner = Spinner("dots", style="cyan")

    def __enter__(self) -> _LiveStep:
        self._started = time.monotonic()
        self._display._opened(self)
        return self

    def __exit__(self, *problem: object) -> None:
        self._display._closed(self, failed=problem[0] is not None)

    def detail(self, text: str) -> None:
        self._detail = text

    def spinner(self) -> Spinner:
        return self._spinner

    def line(self) -> str:
        detail = f" [dim]{_escaped(self._detail)}[/]" if self._detail else ""
        seconds = time.monotonic() - self._started
        return f"{_escaped(self._title):<12}[cyan]{seconds:5.1f} s[/] {detail}"


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


@contextmanager
def closing_display(display: Display) -> Iterator[Display]:
    """Closes the display at the end of the block, also after an error."""
    try:
        yield display
    finally:
        display.close()
